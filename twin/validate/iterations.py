"""Measured training iterations: each simulated as it was run, and held against its measured time.

How a row of a table is told to the twin is the table's own business (`megatron`, `mpt`, `training_runs`):
it gives the keys of a job, or says why no strategy here expresses the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.engine.interval import interval
from twin.engine.parallel import in_parallel
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.trace.metrics import job_flops, job_peak_flops_per_second
from twin.validate.constant_mfu import best_constant_mfu
from twin.validate.groups import Group, IterationGroup, Progress, Validation, summary

Unit = Literal["seconds", "milliseconds"]
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-9, 1e9
"""Beyond, no time of an iteration, and errors too large to be summed up."""
PER_SECOND: dict[Unit, float] = {"seconds": 1.0, "milliseconds": 1e3}


@dataclass(frozen=True)
class Iteration:
    """One row of a table: what was run, and how long it took."""

    row: Mapping[str, Any]
    """The row as the table has it."""
    group: str
    """Rows of one group are summed up together."""
    seconds: float
    """Measured; 0 where the row is left out."""
    job: Mapping[str, Any] | str
    """The keys of the job, or why the row is left out."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the mapping adds to the row, such as what it had to assume."""
    beside_seconds: float = 0.0
    """What the run did besides training and said so, such as watching its memory; added to the prediction."""


@dataclass(frozen=True)
class Prediction:
    """What the twin says about one row."""

    seconds: float
    low: float
    high: float
    measured_mfu: float
    """Model FLOPs (no recomputation) over peak, all devices and the measured time."""


def compare_iterations(iterations: Sequence[Iteration], unit: Unit, *, workers: int, progress: Progress) -> Validation:
    """Simulate all rows that a job was found for; count the others by their reason.

    `unit` is what the compared rows are written in.
    """
    told = [one for one in iterations if not isinstance(one.job, str)]
    answers = iter(in_parallel(_predict, told, workers, progress))
    rows, skipped = [], dict[str, int]()
    groups: dict[str, list[tuple[float, bool, float]]] = {}
    for one in iterations:
        found = one.job if isinstance(one.job, str) else next(answers)
        if isinstance(found, str):
            skipped[found] = skipped.get(found, 0) + 1
            continue
        rows.append(_compared(one, found, unit))
        inside = found.low <= one.seconds <= found.high
        groups.setdefault(one.group, []).append((rows[-1]["error"], inside, found.measured_mfu))
    return Validation("iterations", [_group(name, of) for name, of in groups.items()], rows, skipped)


def _predict(one: Iteration) -> Prediction | str:
    assert not isinstance(one.job, str)
    if not SHORTEST_SECONDS <= one.seconds <= LONGEST_SECONDS:
        return f"measured time is not between {SHORTEST_SECONDS:g} and {LONGEST_SECONDS:g} s"
    try:
        job = load_job(dict(one.job))
    except DescriptionError as error:
        return str(error.problems[0])
    mfu = job_flops(job, recompute=False) / (job_peak_flops_per_second(job) * one.seconds)
    if mfu > _largest_mfu(job):
        return "measured faster than the devices' peak: an impossible row"
    bounds = interval(job)
    beside = one.beside_seconds
    return Prediction(simulate(job).step_seconds + beside, bounds.low + beside, bounds.high + beside, mfu)


def _largest_mfu(job: Job) -> float:
    """Return the largest that is possible: above 1 where the device multiplies numbers of 8 bits faster."""
    eight = job.machine.device.gemm.eight_bits
    return 1.0 if eight is None else float(eight.peak_ratio)


def _compared(one: Iteration, found: Prediction, unit: Unit) -> dict[str, Any]:
    scale = PER_SECOND[unit]
    predicted, measured = found.seconds * scale, one.seconds * scale
    return {
        **one.row,
        **one.notes,
        "group": one.group,
        f"predicted_{unit}": predicted,
        f"measured_{unit}": measured,
        "predicted": predicted,
        "measured": measured,
        "error": predicted / measured - 1.0,
        "interval": [found.low * scale, found.high * scale],
        "inside": found.low <= one.seconds <= found.high,
        "measured_mfu": found.measured_mfu,
    }


def _group(name: str, rows: Sequence[tuple[float, bool, float]]) -> Group:
    errors, inside, mfus = zip(*rows, strict=True)
    _, constant = best_constant_mfu(mfus)
    return IterationGroup(**vars(summary(name, errors)), inside=sum(inside) / len(rows), constant_mfu_mean=constant)
