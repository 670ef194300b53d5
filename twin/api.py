"""The twin from Python: `from twin import load_job, simulate, search, validate, compare`.

Each function is a command of `fourfold` without the terminal, and returns frozen dataclasses in SI units. Where a job
is wanted, a `Job`, the path of a job file or a mapping with its keys will do. Bad input raises `DescriptionError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from twin.description.job import Job
from twin.description.problems import DescriptionError, fail
from twin.diagnose.pipeline import pipeline_of
from twin.engine import simulate as _engine
from twin.engine.interval import Interval
from twin.engine.interval import interval as _interval
from twin.engine.report import Report, as_json, report
from twin.engine.simulation import Simulation
from twin.strategies import load_job, strategy_of
from twin.trace.bubbles import PipelineRun

if TYPE_CHECKING:
    import pyarrow as pa

    from twin.compare.compare import Comparison
    from twin.engine.every_rank import EveryRank
    from twin.search.choose import Choice
    from twin.search.search import By, Search
    from twin.validate.groups import Validation
    from twin.validate.validate import PublishedValidation

__all__ = [
    "DescriptionError",
    "Interval",
    "Job",
    "Prediction",
    "Report",
    "compare",
    "load_job",
    "search",
    "settle",
    "simulate",
    "validate",
]

EngineName = Literal["folded", "des", "ranks"]
Progress = Callable[[int, int], None]
JobLike = Job | str | Path | Mapping[str, Any]


def _silent(done: int, total: int) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """One simulated step of a job."""

    job: Job
    """The job, its grid and micro-batch settled."""
    figures: Report
    """The step in numbers: times in seconds, rates, memory, energy."""
    simulation: Simulation
    """What the figures were read from; with every rank simulated, the ranks whose events were kept."""
    choice: Choice | None
    """What was simulated to settle `grid: auto` or `strategy: auto`; None for a job that leaves nothing open."""
    every_rank: EveryRank | None
    """With `engine="ranks"`: the figures of every seed."""
    interval: Interval | None
    """The step under optimistic and pessimistic terms, if that was asked for."""
    wall_seconds: float
    """How long the simulation took."""

    def __repr__(self) -> str:
        return f"Prediction({self.job.name}: {self.step_seconds:.4g} s a step on {self.job.concrete_grid})"

    @property
    def step_seconds(self) -> float:
        """Last rank's end minus first rank's start."""
        return self.figures.step_seconds

    @property
    def grid(self) -> dict[str, int]:
        """Size of each axis, outermost first."""
        return self.job.concrete_grid.by_axis()

    @property
    def fits(self) -> bool:
        """True if a rank's memory is enough."""
        return self.figures.memory.fits

    @cached_property
    def pipeline(self) -> PipelineRun | None:
        """Passes and bubbles of a pipeline, one rank of each stage; None for a job without one."""
        return pipeline_of(self.simulation)

    @cached_property
    def as_json(self) -> dict[str, Any]:
        """The object that `fourfold simulate --json` prints."""
        every = self.every_rank
        answer: dict[str, Any] = as_json(
            every.simulation if every else self.simulation, self.figures, self.wall_seconds
        )
        if every is not None:
            answer |= {"engine": "ranks", "seed": every.simulation.seed, **every.distribution()}
        if self.pipeline is not None:
            answer["pipeline"] = self.pipeline.as_json()
        if self.choice is not None and self.choice.among_strategies:
            best = [{"strategy": one.job.strategy, "step_seconds": one.step_seconds} for one in self.choice.simulations]
            answer |= {"strategy": self.job.strategy, "strategies": best, "cannot_run": dict(self.choice.cannot_run)}
        if self.interval is not None:
            answer["step_seconds_interval"] = [self.interval.low, self.interval.high]
        return answer

    def events(self, ranks: Sequence[int] | None = None) -> pa.Table:
        """Return the event table of some ranks, by default of one rank of each class."""
        from twin.engine.events import event_table  # noqa: PLC0415  pyarrow takes long to load
        from twin.engine.runs import default_ranks  # noqa: PLC0415

        return event_table(self.simulation, list(ranks or default_ranks(self.simulation)))

    def write(self, directory: str | Path, ranks: Sequence[int] | None = None, *, overwrite: bool = False) -> None:
        """Write the run (trace, manifest, resolved job, timeline page) into a new directory."""
        from twin.engine.runs import write_run  # noqa: PLC0415
        from twin.engine.seeds import rank_table  # noqa: PLC0415

        tables = {"ranks.parquet": rank_table(self.every_rank.simulation)} if self.every_rank else None
        write_run(
            Path(directory),
            self.simulation,
            self.as_json,
            ranks,
            tables=tables,
            pipeline=self.pipeline,
            overwrite=overwrite,
        )

    def write_chrome(self, path: str | Path, ranks: Sequence[int] | None = None, *, overwrite: bool = False) -> None:
        """Write a Chrome/Perfetto trace, `.json` or `.json.gz`."""
        from twin.engine.runs import write_chrome_trace  # noqa: PLC0415

        write_chrome_trace(Path(path), self.simulation, ranks, overwrite=overwrite)


def settle(
    job: JobLike, *, workers: int = 1, refuse: Callable[[Job], str] | None = None, progress: Progress = _silent
) -> tuple[Job, Choice | None]:
    """Settle what a job leaves open (`grid: auto`, `strategy: auto`), and return what was simulated for it.

    `refuse` says why a concrete job will not do, or nothing; such a one is not chosen.
    Raises DescriptionError if nothing fits.
    """
    described = _job(job)
    if described.is_concrete:
        return described, None
    from twin.search.choose import choose  # noqa: PLC0415  only where something is left open

    choice = choose(described, workers=workers, refuse=refuse, progress=progress)
    return choice.best.job, choice


def simulate(
    job: JobLike,
    *,
    engine: EngineName = "folded",
    seeds: int = 1,
    interval: bool = False,
    ranks: Sequence[int] | None = None,
    workers: int = 1,
    refuse: Callable[[Job], str] | None = None,
    progress: Progress = _silent,
) -> Prediction:
    """Simulate one training step of a job, after settling what it leaves open.

    Args:
        job: what to simulate.
        engine: `folded` simulates one rank of each class with the same future, `des` every rank, no matter how
            alike; `ranks` gives every rank its own drawn device speed, jitter and noise.
        seeds: with `ranks`, how many draws to simulate.
        interval: also simulate optimistic and pessimistic terms.
        ranks: with `ranks`, the ranks whose events are kept.
        workers: with `ranks`, and for a job with `strategy: auto`, processes to use.
        refuse: says why a concrete job will not do, or nothing; such a one is not chosen.
        progress: is told (done, all) of the candidates or the seeds.

    Raises DescriptionError if the job cannot be run.
    """
    begin = time.perf_counter()
    if seeds > 1 and engine != "ranks":
        raise fail("--seeds", "is for --engine ranks; the other engines draw nothing", seeds)
    if interval and engine == "ranks":
        raise fail("--interval", "is for the other engines; --engine ranks has --seeds")
    settled, choice = settle(job, workers=workers, refuse=refuse, progress=progress)
    if engine == "ranks":
        from twin.engine.every_rank import simulate_every_rank  # noqa: PLC0415  PyArrow starts threads

        every = simulate_every_rank(settled, seeds=seeds, ranks=ranks, workers=workers, progress=progress)
        kept, wall = every.simulation.of_recorded(), time.perf_counter() - begin
        return Prediction(settled, every.figures, kept, choice, every, None, wall)
    done = choice.best if choice is not None and engine == "folded" else None
    simulation = done or _engine.simulate(settled, engine=engine)
    figures, wall = report(simulation), time.perf_counter() - begin
    return Prediction(settled, figures, simulation, choice, None, _interval(settled) if interval else None, wall)


def search(
    job: JobLike,
    *,
    over: Iterable[str] = (),
    by: By = "simulation",
    only: Mapping[str, Iterable[int]] | None = None,
    workers: int = 1,
    progress: Progress = _silent,
) -> Search:
    """Simulate every grid of a job's ranks, whatever grid and micro-batch the job has; the fastest comes first.

    Args:
        job: what to search.
        over: what else to vary: `recompute`, `cache`, `sharding`, `overlap` and `micro` of four_d, or `all`.
        by: `simulation`, or `axonn`: the published communication model alone decides.
        only: sizes that axes are restricted to, such as `{"y": [1, 2]}`.
        workers: processes to use; a script that uses more than one guards its calls with
            `if __name__ == "__main__":`.
        progress: is told (done, all) of the candidates.

    Raises DescriptionError if nothing can run.
    """
    from twin.search.over import parse_over  # noqa: PLC0415  only where it is wanted
    from twin.search.quantities import parse_grid  # noqa: PLC0415
    from twin.search.search import search as ranked  # noqa: PLC0415

    described = _job(job)
    strategy = strategy_of(described)
    sizes = [f"{axis}={','.join(map(str, of))}" for axis, of in (only or {}).items()]
    return ranked(
        described,
        over=parse_over(",".join(over), strategy),
        by=by,
        only=parse_grid(sizes, strategy.axes),
        workers=workers,
        progress=progress,
    )


@overload
def validate(measurements: None = None, *, workers: int = 1, progress: Progress = ...) -> PublishedValidation: ...
@overload
def validate(
    measurements: str | Path, *, strategy: str | None = None, workers: int = 1, progress: Progress = ...
) -> Validation: ...
def validate(
    measurements: str | Path | None = None,
    *,
    strategy: str | None = None,
    workers: int = 1,
    progress: Progress = _silent,
) -> PublishedValidation | Validation:
    """Compare predictions with published runs, or with a file of your own measurements.

    A CSV file has columns of collectives, of matrix products or of iterations, a YAML file training runs
    (docs/reference/job-file.md). Groups of iterations are `IterationGroup`. `strategy`: which one iterations of FSDP
    are read as, `four_d` (z, the default) or `fsdp`.
    Published runs take about a minute. Raises DescriptionError for a file that cannot be read.
    """
    if measurements is None:
        from twin.validate.validate import validate_published  # noqa: PLC0415  only where it is wanted

        return validate_published(workers=workers, progress=progress)
    from twin.validate.measurements import validate_file  # noqa: PLC0415

    return validate_file(Path(measurements), strategy=strategy, workers=workers, progress=progress)


def compare(predicted: str | Path, measured: str | Path, step: int | None = None) -> Comparison:
    """Take the difference between a predicted and a measured step apart; the terms sum to it exactly.

    Both are directories of traces, as `Prediction.write` and `fourfold train --trace` leave them. `step` names the
    measured step; the one of median length if None. Raises DescriptionError if they are not of the same job.
    """
    from twin.compare.compare import compare as held_together  # noqa: PLC0415  pyarrow takes long to load

    return held_together(Path(predicted), Path(measured), step)


def _job(job: JobLike) -> Job:
    return job if isinstance(job, Job) else load_job(job)
