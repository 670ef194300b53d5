"""One run, read and checked before anything is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin import __version__
from twin.compare.clocks import MAX_DISAGREEMENT, Clock, disagreement_ns, said_clock, too_early_ns
from twin.compare.jobs import Work, work_of
from twin.compare.stages import Stage, read_stages, too_early_across_ns, with_steps
from twin.compare.steps import Steps
from twin.description.problems import fail, shorten
from twin.trace.store import Trace, read_classes, read_trace

FIGURE_SLACK_NS = 2
"""Times are rounded to nanoseconds."""


@dataclass(frozen=True)
class Side:
    """A run, read and checked."""

    origin: str
    manifest: Mapping[str, Any]
    work: Work
    stages: tuple[Stage, ...]
    """Of a job without a pipeline a single one."""
    place: NDArray[np.int64]
    """For each rank of the job the row of its stage that stands for it, -1 if there is none."""
    clock: Clock
    warnings: tuple[str, ...]
    from_zero: bool = False
    """Its step begins at its clock's zero, as a simulated one does: with what the host does before the first op."""

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks have different roles."""
        return len(self.work.roles) > 1

    @property
    def steps(self) -> Steps:
        """The steps of a run whose ranks all have one role."""
        (stage,) = self.stages
        return stage.steps

    def text(self, *path: str) -> str:
        """Return a word of the manifest."""
        value: Any = self.manifest
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return str(value)


def read_side(path: Path, name: str) -> Side:
    """Read the run in a directory; raises DescriptionError where it is damaged or makes no sense."""
    trace = read_trace(path)
    origin = f"{name} ({path})"
    if trace.manifest.get("kind") not in ("predicted", "measured"):
        raise fail(origin, "kind is neither predicted nor measured", trace.manifest.get("kind"))
    work, clock = work_of(trace.manifest, origin), said_clock(trace.manifest, origin)
    stages = read_stages(trace.events, work.roles, origin)
    measured = trace.manifest["kind"] == "measured"
    from_zero = not measured and len(stages[0].steps.times) == 1
    stages, warnings = _with_sound_clocks(stages, clock, work, measured, origin)
    stages = with_steps(stages, list(stages[0].steps.times), from_zero=from_zero)
    place = _places(path, trace, stages, work, origin)
    return Side(
        origin,
        trace.manifest,
        work,
        stages,
        place,
        clock,
        (*warnings, *_about_run(trace.manifest, stages[0].steps, place, origin)),
        from_zero,
    )


def _with_sound_clocks(
    stages: tuple[Stage, ...], clock: Clock, work: Work, measured: bool, origin: str
) -> tuple[tuple[Stage, ...], list[str]]:
    """Leave out steps in which the ranks' clocks contradict each other."""
    warnings, sound = [warning for stage in stages for warning in stage.steps.warnings], []
    for number, times in stages[0].steps.times.items():
        off = max(disagreement_ns(stage.steps, stage.steps.times[number]) for stage in stages)
        if len(work.roles) == 1:
            off = max(off, too_early_ns(stages[0].steps, times, work.grid))
        elif measured:  # a simulation has one clock
            off = max(off, too_early_across_ns(stages, number))
        if off > max(MAX_DISAGREEMENT * times.length_ns, clock.said_ns):
            warnings.append(
                f"step {number} of {origin} is dropped: clocks of its ranks disagree by "
                f"{off / 1e9:.3g} s in a step of {times.length_ns / 1e9:.3g} s"
            )
        else:
            sound.append(number)
    if not sound:
        raise fail(origin, "clocks jumped, or the trace was put together wrongly; " + "; ".join(warnings))
    return with_steps(stages, sound), warnings


def _places(path: Path, trace: Trace, stages: tuple[Stage, ...], work: Work, origin: str) -> NDArray[np.int64]:
    """Which row of its stage stands for each rank of the job; in a folded run, one of its class."""
    ranks = work.grid.ranks
    if strange := [rank for stage in stages for rank in stage.steps.ranks[stage.steps.ranks >= ranks].tolist()]:
        raise fail(origin, f"has events of a rank that a job of {ranks} ranks does not have", strange[0])
    place = np.full(ranks, -1, dtype=np.int64)
    classes = read_classes(path, trace.manifest) if trace.manifest["kind"] == "predicted" else None
    if classes is not None:
        if sorted(classes) != list(range(ranks)):
            raise fail(origin, f"classes.parquet does not give each of the {ranks} ranks a class")
        for stage in stages:
            row_of_class = {classes[rank]: row for row, rank in reversed([*enumerate(stage.steps.ranks.tolist())])}
            place[stage.ranks] = [row_of_class.get(classes[rank], -1) for rank in stage.ranks.tolist()]
    for stage in stages:
        place[stage.steps.ranks] = np.arange(len(stage.steps.ranks))
    return place


def _about_run(manifest: Mapping[str, Any], steps: Steps, place: NDArray[np.int64], origin: str) -> list[str]:
    """What a run's own manifest says that a reader should know."""
    found = []
    if (version := manifest.get("code_version")) != __version__:
        found.append(f"{origin} was written by version {shorten(version)} of Fourfold; this is {__version__}")
    moved = manifest.get("corrections")
    if isinstance(moved, dict) and moved.get("ends_moved"):
        found.append(
            f"{origin}: {moved['ends_moved']} collectives ended before their last member came, by the "
            f"ranks' clocks, by up to {moved.get('largest_ns')} ns; these ends were moved"
        )
    figures = manifest.get("figures")
    said = figures.get("step_seconds") if isinstance(figures, dict) else None
    if isinstance(said, float) and len(steps.times) == 1 and (place >= 0).all():
        (times,) = steps.times.values()
        if abs(times.end_ns - said * 1e9) > FIGURE_SLACK_NS:
            found.append(f"{origin}: its manifest says {said:.6g} s a step, its events {times.end_ns / 1e9:.6g} s")
    return found
