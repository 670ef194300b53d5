"""Published training runs as data, and what the twin says about each.

Each run is simulated the way its authors chose their configuration (`twin.search.choose`).
Nothing in the twin is fitted to these times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twin.description.job import Job, with_below
from twin.description.strict_yaml import read_yaml
from twin.engine.interval import interval
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.search.choose import choose
from twin.strategies import load_job

DATA = Path(__file__).parent / "data" / "published.yaml"
SEQUENCES = 8192


@dataclass(frozen=True)
class Comparison:
    """One published figure beside the twin's."""

    name: str
    predicted: float
    measured: float
    details: dict[str, Any]

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted / self.measured - 1.0


def runs() -> dict[str, Any]:
    """Read the published runs."""
    return read_yaml(DATA)


def published_job(run: dict[str, Any]) -> Job:
    """Make the job of a published run; unless published, grid and micro-batch are left to the twin."""
    return load_job(
        {
            "name": f"{run['model']} on {run['ranks']} of {run['machine']}",
            "model": run["model"],
            "machine": run["machine"],
            "ranks": run["ranks"],
            "batch": {"sequences": SEQUENCES},
            "grid": run.get("grid", "auto"),
            "published": True,
        }
    )


def weak_scaling(run: dict[str, Any]) -> Comparison:
    """Predict one point of the weak scaling."""
    choice = choose(published_job(run))
    bounds = interval(choice.best.job)
    return Comparison(
        choice.best.job.name,
        choice.best.step_seconds,
        run["seconds"],
        _details(choice.best) | {"interval": [bounds.low, bounds.high], "note": run.get("note", "")},
    )


def ablation(run: dict[str, Any]) -> Iterator[Comparison]:
    """Predict the step times with OAR, ORS and OAG added one after the other.

    The grid is the one chosen with everything on, as a user would run it.
    """
    best = choose(published_job(run)).best.job
    for number, step in enumerate(run["steps"]):
        overlap = {"all_reduce": number > 0, "reduce_scatter": number > 1, "all_gather": number > 2}
        simulation = simulate(with_below(best, "overlap", overlap))
        yield Comparison(step["name"], simulation.step_seconds, step["seconds"], _details(simulation))


def kernel_tuning(run: dict[str, Any]) -> Iterator[Comparison]:
    """Predict computation per batch without and with kernel tuning, on each grid given."""
    for grid in run["grids"]:
        best = choose(published_job({**run, "grid": grid})).best.job
        for tuned in (False, True):
            simulation = simulate(best.model_copy(update={"kernel_tuning": tuned}))
            name = "tuned" if tuned else "untuned"
            yield Comparison(
                f"{name}, grid {'chosen' if grid == 'auto' else 'of the reproducer'}",
                report(simulation).compute_seconds,
                run[f"{name}_compute_seconds"],
                _details(simulation),
            )


def _details(simulation: Simulation) -> dict[str, Any]:
    figures = report(simulation)
    job = simulation.job
    return {
        "grid": job.concrete_grid.by_axis(),
        "micro_sequences": job.concrete_micro_sequences,
        "compute_seconds": figures.compute_seconds,
        "slowest_device_wait_seconds": figures.slowest_device_wait_seconds,
        "exposed_seconds": figures.exposed_seconds,
        "exposed_by_axis": figures.exposed_by_axis,
        "idle_seconds": figures.idle_seconds,
    }
