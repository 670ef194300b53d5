"""One point of a study, from a mapping to a mapping of figures; what workers run.

Tasks and answers are plain mappings of text and numbers, so that a worker may be a process here
or one on another node.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from twin.cost.memory import memory_use
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.engine.every_rank import simulate_every_rank
from twin.engine.report import as_json, report
from twin.engine.simulate import simulate
from twin.search.candidates import lacking
from twin.search.choose import choose
from twin.strategies import load_job, strategy_of

Status = Literal["done", "refused", "crashed"]
"""refused: the job is impossible, for the reason given; crashed: something broke, worth another try."""

PARTS = {
    "exposed_by_axis": "exposed",
    "peers_by_axis": "peers",
    "communication_by_axis": "communication",
    "compute_by_phase": "compute",
}
"""Figures by axis or phase, and the first word of their columns."""
LEFT_OUT = {"job", "caveat", "wall_seconds", "percent_of_peak"}
"""What `simulate --json` prints and a point does not repeat."""


UNFIT = "does not fit into memory"
"""What such a point's reason begins with."""
EngineName = Literal["folded", "des", "ranks"]


class UnfitError(Exception):
    """A job does not fit into memory, and is not to be simulated."""


@dataclass(frozen=True)
class PointOptions:
    """The way points are computed."""

    engine: EngineName = "folded"
    seeds: int = 1
    """Draws of the all-ranks engine: figures are those of the draw of median step, with percentiles."""
    only_fitting: bool = False
    """Refuse what does not fit into memory, unsimulated."""


class Task(TypedDict):
    """A point to compute."""

    number: int
    raw: dict[str, Any]
    engine: EngineName
    seeds: int
    only_fitting: bool


class Answer(TypedDict):
    """What became of a point."""

    number: int
    status: Status
    reason: str
    figures: dict[str, Any]
    job: dict[str, Any]
    """The point's job with grid and micro-batch settled; empty if it could not be."""
    wall_seconds: float


def compute_point(task: Task) -> Answer:
    """Compute one point; a job that is impossible is an answer, not an error."""
    begin = time.perf_counter()

    def answer(status: Status, reason: str, figures: dict[str, Any], job: dict[str, Any]) -> Answer:
        return Answer(
            number=task["number"],
            status=status,
            reason=reason,
            figures=figures,
            job=job,
            wall_seconds=time.perf_counter() - begin,
        )

    try:
        job = load_job(task["raw"])
        strategy_of(job)  # one that is left open is refused: points of a study are told apart by what they say
        job, figures = simulate_point(job, PointOptions(task["engine"], task["seeds"], task["only_fitting"]))
    except UnfitError as error:
        return answer("refused", str(error), {}, {})
    except DescriptionError as error:
        return answer("refused", "; ".join(str(problem) for problem in error.problems), {}, {})
    except Exception as error:
        # one broken point must not end a study of thousands
        return answer("crashed", f"{type(error).__name__}: {error}".strip(": "), {}, {})
    reason = "" if figures["memory_fits"] else f"{UNFIT}: {figures['memory_advice']}"
    return answer("done", reason, figures, dict(task["raw"]) | settled(job))


def simulate_point(job: Job, options: PointOptions) -> tuple[Job, dict[str, Any]]:
    """Simulate one step of a job, choosing grid and micro-batch if they are `auto`.

    Returns the concrete job, and the figures of `fourfold simulate --json` as flat columns, all in
    SI units. Raises UnfitError where memory does not suffice and that is asked for.
    """
    simulation, tried = None, 1
    if not job.is_concrete:
        choice = choose(job)
        simulation, job, tried = choice.best, choice.best.job, len(choice.simulations)
    if options.only_fitting and not (use := memory_use(job)).fits:
        raise UnfitError(f"{UNFIT}: {lacking(use, job.concrete_micro_sequences)}")
    if options.engine == "ranks":
        every = simulate_every_rank(job, seeds=options.seeds, ranks=[])
        columns = flat(as_json(every.simulation, every.middle, 0.0)) | flat(every.distribution())
        tried += options.seeds
    else:
        if simulation is None or options.engine == "des":
            simulation = simulate(job, engine=options.engine)
        columns = flat(as_json(simulation, report(simulation), 0.0))
    return job, columns | {
        "tokens_per_step": job.tokens_per_step,
        "parameters": job.model.parameters,
        "simulations": tried,
    }


def flat(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the nested answer of `simulate` into columns.

    >>> flat({"grid": {"z": 4}, "exposed_by_axis": {"z": 0.5}, "memory": {"fits": True}})
    {'grid_z': 4, 'exposed_z_seconds': 0.5, 'memory_fits': True}
    """
    columns: dict[str, Any] = {}
    for key, value in answer.items():
        if key in PARTS:
            columns |= {f"{PARTS[key]}_{part}_seconds": seconds for part, seconds in value.items()}
        elif key == "memory":
            columns |= {f"memory_{k}": v for k, v in value.items() if k not in {"by_category", "tiers"}}
        elif key == "energy":
            known = {k: v for k, v in value.items() if v is not None and not isinstance(v, Mapping)}
            # those of the widest boundary would take the name of the devices', and stand under their own besides
            columns |= {f"energy_{k}": v for k, v in known.items() if k != "joules"}
        elif key == "seeds":
            columns["seeds"] = value["count"]
            columns |= {
                f"{figure}_{name}": v
                for figure, marks in value.items()
                if figure != "count"
                for name, v in marks.items()
            }
        elif key == "grid":
            columns |= {f"grid_{axis}": size for axis, size in value.items()}
        elif key not in LEFT_OUT:
            columns[key] = value
    return columns


def settled(job: Job) -> dict[str, Any]:
    """Return the keys of a job file that hold the grid and the batch of a concrete job."""
    grid = job.concrete_grid.by_axis()
    batch = {"sequences": job.batch.sequences, "micro_sequences": job.concrete_micro_sequences}
    return {"grid": grid, "batch": batch}
