"""Errors of single ops: predicted against the median over measured steps, rank by rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twin.compare.account import skew_of
from twin.compare.steps import OpFacts, Steps, Times

Floats = NDArray[np.float64]
By = Literal["all", "kind", "axis", "phase", "name"]
WORST_OPS = 10


@dataclass(frozen=True)
class PairedRun:
    """One side of a comparison: paired ops of the compared ranks, in the other side's order."""

    steps: Steps
    rows: NDArray[np.int64]
    """Rows of the compared ranks, or of classes of them."""
    weights: NDArray[np.int64]
    """Number of ranks that each row stands for."""
    columns: NDArray[np.int64]
    """Column of each paired compute and collective."""


@dataclass(frozen=True)
class Samples:
    """Seconds of paired ops, matrices (rows, ops)."""

    ops: tuple[OpFacts, ...]
    weights: NDArray[np.int64]
    """Number of ranks that each row stands for."""
    predicted: Floats
    measured: Floats
    """Computes as long as they run; collectives from when their last member came."""
    predicted_skew: Floats
    measured_skew: Floats
    """Time that collectives waited for their last member; zero for computes."""


@dataclass(frozen=True)
class ErrorGroup:
    """Ops of one sort. Seconds are of a rank and a step, mean over ranks.

    Relative errors are |predicted − measured| / measured of single ops on single ranks, None where
    nothing was measured to take any time.
    """

    part: Literal["compute", "collective"]
    by: By
    name: str
    ops: int
    """Of one rank in one step."""
    predicted_seconds: float
    measured_seconds: float
    median_error: float | None
    p90_error: float | None
    bias: float | None
    """Predicted total over measured total, less one."""
    predicted_skew_seconds: float
    measured_skew_seconds: float


@dataclass(frozen=True)
class OpError:
    """One op, mean over ranks."""

    op: str
    part: Literal["compute", "collective"]
    predicted_seconds: float
    measured_seconds: float


def samples(predicted: PairedRun, measured: PairedRun) -> Samples:
    """Take the durations of paired ops; of several steps their median."""
    ops = tuple(predicted.steps.ops[i] for i in predicted.columns)
    ours, theirs = (_median(run, lambda _, t: t.end - t.start) for run in (predicted, measured))
    collective = np.array([op.kind == "collective" for op in ops], dtype=bool)
    skews = [np.where(collective, _median(run, skew_of), 0.0) for run in (predicted, measured)]
    return Samples(ops, predicted.weights, ours, theirs, *skews)


def _median(run: PairedRun, what: Callable[[Steps, Times], NDArray[np.int64]]) -> Floats:
    found = [what(run.steps, times.of(run.rows))[:, run.columns] for times in run.steps.times.values()]
    return np.asarray(np.median(found, axis=0) * 1e-9, dtype=np.float64)


def groups(found: Samples) -> list[ErrorGroup]:
    """Sum up errors of all ops, by kind, by axis, by phase, by name.

    Computes stand before collectives, and what takes long before what does not.
    """
    sorts: dict[By, Callable[[OpFacts], str]] = {
        "all": lambda _: "all",
        "kind": lambda op: op.work,
        "axis": lambda op: op.axis,
        "phase": lambda op: op.phase,
        "name": lambda op: op.name,
    }
    members: dict[tuple[Literal["compute", "collective"], By, str], list[int]] = {}
    for by, sort in sorts.items():
        for column, op in enumerate(found.ops):
            part = part_of(op)
            if part == "collective" or by != "axis":
                members.setdefault((part, by, sort(op)), []).append(column)
    summed = [_group(*key, found, columns) for key, columns in members.items()]
    return sorted(summed, key=lambda g: (list(sorts).index(g.by), g.part != "compute", -g.measured_seconds))


def part_of(op: OpFacts) -> Literal["compute", "collective"]:
    """Tell whether an op that is no wait computes or communicates."""
    return "collective" if op.kind == "collective" else "compute"


def _group(
    part: Literal["compute", "collective"], by: By, name: str, found: Samples, columns: Sequence[int]
) -> ErrorGroup:
    predicted, measured, *skews = (
        m[:, columns] for m in (found.predicted, found.measured, found.predicted_skew, found.measured_skew)
    )
    took = measured > 0
    error = np.abs(predicted[took] / measured[took] - 1.0)
    weights = np.broadcast_to(found.weights[:, None], took.shape)[took]
    middle, most = (
        np.quantile(error, (0.5, 0.9), weights=weights, method="inverted_cdf").tolist() if error.size else (None, None)
    )
    totals = [float(np.average(m.sum(axis=1), weights=found.weights)) for m in (predicted, measured, *skews)]
    return ErrorGroup(
        part,
        by,
        name,
        len(columns),
        totals[0],
        totals[1],
        middle,
        most,
        totals[0] / totals[1] - 1.0 if totals[1] > 0 else None,
        totals[2],
        totals[3],
    )


def worst_ops(found: Samples) -> list[OpError]:
    """Return the ops that are furthest off in seconds, mean over ranks, furthest first."""
    predicted, measured = (np.average(m, axis=0, weights=found.weights) for m in (found.predicted, found.measured))
    order = np.argsort(-np.abs(predicted - measured), kind="stable")[:WORST_OPS]
    return [OpError(found.ops[i].op, part_of(found.ops[i]), float(predicted[i]), float(measured[i])) for i in order]
