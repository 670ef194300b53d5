"""Two runs of one job held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from twin.compare.account import AFTER, BEFORE, OTHER_TERMS, account, terms_of
from twin.compare.clocks import Clock, disagreement_ns
from twin.compare.errors import ErrorGroup, OpError, PairedRun, groups, samples, worst_ops
from twin.compare.jobs import differences
from twin.compare.pairing import SIDES, PairedStage, Unpaired, common_ranks, paired_stages
from twin.compare.pipeline import ComparedPipeline, ComparedStage, critical
from twin.compare.side import Side, read_side
from twin.compare.stages import span_of
from twin.compare.steps import Steps, Times
from twin.compare.terms import Term, terms_between
from twin.description.problems import DescriptionError, fail

EXAMPLES = 5
PHASES = {name: OTHER_TERMS[name] for name in (BEFORE, AFTER)}


@dataclass(frozen=True)
class Comparison:
    """Where the difference between two steps comes from. `terms` and `phases` each sum to it."""

    job: str
    grid: str
    kinds: tuple[str, str]
    machines: tuple[str, str]
    ranks: int
    """Compared."""
    ranks_of_job: int
    step: int
    """The measured step that is taken apart."""
    steps: tuple[int, ...]
    """All measured steps, whose medians are the ops' measured times."""
    predicted_seconds: float
    measured_seconds: float
    difference_seconds: float
    between_steps_seconds: float | None
    """From a rank's end of a measured step to its begin of the next, median; None for a single step."""
    terms: tuple[Term, ...]
    phases: tuple[Term, ...]
    errors: tuple[ErrorGroup, ...]
    worst: tuple[OpError, ...]
    unpaired: Unpaired
    clock: Clock
    warnings: tuple[str, ...]
    pipeline: ComparedPipeline | None = None
    """Stage by stage, where ranks have different roles; `terms` and `phases` are then those of the critical stage."""

    def error(self, part: str, by: str, name: str) -> ErrorGroup | None:
        """Find one group of errors."""
        return next((g for g in self.errors if (g.part, g.by, g.name) == (part, by, name)), None)


def compare(predicted: Path, measured: Path, step: int | None = None) -> Comparison:
    """Compare the run in one directory with that in another.

    The measured step of median length is taken apart, or the one that `step` names. Raises
    DescriptionError where the runs are damaged or not of the same job.
    """
    sides = [read_side(path, name) for path, name in zip((predicted, measured), SIDES, strict=True)]
    kinds = (sides[0].text("kind"), sides[1].text("kind"))
    if kinds == ("measured", "predicted"):
        raise fail("PREDICTED MEASURED", "the first trace is measured and the second predicted; swap them")
    if problems := differences(sides[0].work, sides[1].work):
        raise DescriptionError(problems, "the traces are of different jobs")
    ranks, lost = common_ranks(sides)
    stages = paired_stages(*sides, ranks)
    number = _chosen_step(sides[1].stages[0].steps, step)
    runs = [[stage.predicted for stage in stages], [stage.measured for stage in stages]]
    chosen = [_chosen_step(runs[0][0].steps, None), number]
    axes, depth = _axes(sides), _depth(sides[0], stages)
    accounts = [
        [
            account(run.steps, times, stage.has, axes, stage.weights, depth)
            for stage, run, times in zip(stages, of, _times(of, n), strict=True)
        ]
        for of, n in zip(runs, chosen, strict=True)
    ]
    shown = max(disagreement_ns(run.steps, run.steps.times[number]) for run in runs[1])
    clock = replace(sides[1].clock, uncertainty_ns=max(shown, sides[1].clock.said_ns))
    compared = [
        ComparedStage.of(
            stage.name,
            after.ranks,
            terms_between(before, after, before.terms, after.terms, terms_of(axes, depth), clock),
            terms_between(before, after, before.phases, after.phases, PHASES, clock),
        )
        for stage, before, after in zip(stages, *accounts, strict=True)
    ]
    decides = [critical(of) for of in accounts]
    found = [samples(stage.name, stage.predicted, stage.measured) for stage in stages]
    unpaired = Unpaired(
        tuple(name for stage in stages for name in stage.unpaired.predicted),
        tuple(name for stage in stages for name in stage.unpaired.measured),
    )
    warnings = [
        *_about_kinds(kinds),
        *sides[0].warnings,
        *sides[1].warnings,
        *lost,
        *_about_sizes(stages),
        *_about_clock(clock),
        *_about_unpaired(unpaired),
    ]
    before, after = accounts[0][0].length_ns, accounts[1][0].length_ns
    return Comparison(
        job=sides[1].text("job", "name"),
        grid=str(sides[0].work.grid),
        kinds=kinds,
        machines=(sides[0].text("job", "machine", "name"), sides[1].text("job", "machine", "name")),
        ranks=len(ranks),
        ranks_of_job=sides[0].work.grid.ranks,
        step=number,
        steps=tuple(sides[1].stages[0].steps.times),
        predicted_seconds=before / 1e9,
        measured_seconds=after / 1e9,
        difference_seconds=(after - before) / 1e9,
        between_steps_seconds=_between([stage.steps for stage in sides[1].stages]),
        terms=compared[decides[1]].terms,
        phases=compared[decides[1]].phases,
        errors=tuple(groups(found)),
        worst=tuple(worst_ops(found)),
        unpaired=unpaired,
        clock=clock,
        warnings=tuple(warnings),
        pipeline=_pipeline(compared, decides) if len(sides[0].work.roles) > 1 else None,
    )


def _pipeline(stages: Sequence[ComparedStage], decides: Sequence[int]) -> ComparedPipeline:
    return ComparedPipeline(stages[decides[1]].name, stages[decides[0]].name, tuple(stages))


def _times(runs: Sequence[PairedRun], number: int) -> list[Times]:
    """Return a step's times of the compared ranks of each stage; the step is that of all of them."""
    times = [run.steps.times[number].of(run.rows) for run in runs]
    return [replace(each, span_ns=span_of(times)) for each in times]


def _depth(side: Side, stages: Sequence[PairedStage]) -> tuple[str, ...]:
    """Return the axes that join the stages of a pipeline; none where all ranks have one role."""
    return side.work.grid.depth_axes if stages[0].name else ()


def _axes(sides: Sequence[Side]) -> list[str]:
    """Return the mesh's axes, then others that collectives of either trace run over."""
    others = [
        op.axis
        for side in sides
        for stage in side.stages
        for op in stage.steps.ops
        if op.kind == "collective" and op.axis
    ]
    return list(dict.fromkeys([*sides[0].work.grid.axes, *sides[1].work.grid.axes, *others]))


def _chosen_step(steps: Steps, step: int | None) -> int:
    """Return the step that is asked for, or the (lower) median by length."""
    if step is not None:
        if step not in steps.times:
            raise fail("--step", f"choose from {', '.join(map(str, steps.times))}", step)
        return step
    ordered = sorted(steps.times, key=lambda s: (steps.times[s].length_ns, s))
    return ordered[(len(ordered) - 1) // 2]


def _between(several: Sequence[Steps]) -> float | None:
    """Median over ranks and steps."""
    gaps = [
        steps.times[b].arrival.min(1) - steps.times[a].end.max(1)
        for steps in several
        for a, b in pairwise(steps.times)
        if b == a + 1
    ]
    return float(np.median(np.concatenate(gaps))) / 1e9 if gaps else None


def _about_kinds(kinds: tuple[str, str]) -> list[str]:
    if kinds == ("predicted", "measured"):
        return []
    return [f"both traces are {kinds[0]}: below, “predicted” means the first and “measured” the second"]


def _about_sizes(stages: Sequence[PairedStage]) -> list[str]:
    other = [name for stage in stages for name in stage.resized]
    if not other:
        return []
    return [f"{len(other)} paired ops have other bytes or flops in the second trace, such as {other[0]}"]


def _about_clock(clock: Clock) -> list[str]:
    if clock.uncertainty_ns == clock.said_ns:
        return []
    shown, said = (f"{ns / 1e3:.1f} µs" for ns in (clock.uncertainty_ns, clock.said_ns))
    warning = (
        f"collectives end up to {shown} behind the waits for them, more than the {said} by which clocks "
        "are said to be uncertain; skew and transfer are only as certain as that"
    )
    return [warning]


def _about_unpaired(unpaired: Unpaired) -> list[str]:
    return [
        f"{len(names)} ops are in {side} only: {', '.join(names[:EXAMPLES])}{', …' if names[EXAMPLES:] else ''}"
        for side, names in zip(SIDES, (unpaired.predicted, unpaired.measured), strict=True)
        if names
    ]
