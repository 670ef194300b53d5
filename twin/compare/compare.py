"""Two runs of one job held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from twin.compare.account import AFTER, BEFORE, OTHER_TERMS, Account, account, terms_of
from twin.compare.clocks import Clock, disagreement_ns
from twin.compare.energy import ComparedEnergy, energy_of
from twin.compare.errors import ErrorGroup, OpError, groups, samples, worst_ops
from twin.compare.jobs import differences
from twin.compare.pairing import SIDES, PairedStage, Unpaired, common_ranks, paired_stages
from twin.compare.pipeline import ComparedPipeline, ComparedStage, critical
from twin.compare.side import Side, read_side
from twin.compare.stages import span_of
from twin.compare.steps import Steps
from twin.compare.terms import Term, terms_between
from twin.description.problems import DescriptionError, fail
from twin.description.units import counted

OTHER_JOBS = "the traces are of different jobs"
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
    """Of the step that is taken apart."""
    median_seconds: float
    """Of all measured steps."""
    difference_seconds: float
    energy: ComparedEnergy | None
    """Of a step, where both runs say it."""
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
        raise DescriptionError(problems, OTHER_JOBS)
    ranks, lost = common_ranks(sides)
    stages = paired_stages(sides[0], sides[1], ranks)
    number = _chosen_step(sides[1].stages[0].steps, step)
    clock = _clock(sides[1], stages, number)
    accounts = _accounts(sides, stages, (_chosen_step(sides[0].stages[0].steps, None), number))
    labels = terms_of(_axes(sides), _depth(sides[0]))
    compared = [
        ComparedStage.of(
            stage.name,
            after.ranks,
            terms_between(before, after, before.terms, after.terms, labels, clock),
            terms_between(before, after, before.phases, after.phases, PHASES, clock),
        )
        for stage, before, after in zip(stages, *accounts, strict=True)
    ]
    before, after = (compared[critical(of)].name for of in accounts)
    decides = ComparedPipeline(after, before, tuple(compared))
    found = [samples(stage.name, stage.predicted, stage.measured) for stage in stages]
    said = [*_about_kinds(kinds), *sides[0].warnings, *sides[1].warnings, *lost]
    unpaired = _unpaired(stages)
    first, second = accounts[0][0].length_ns, accounts[1][0].length_ns
    return Comparison(
        job=sides[1].text("job", "name"),
        grid=str(sides[0].work.grid),
        kinds=kinds,
        machines=(sides[0].text("job", "machine", "name"), sides[1].text("job", "machine", "name")),
        ranks=len(ranks),
        ranks_of_job=sides[0].work.grid.ranks,
        step=number,
        steps=tuple(sides[1].stages[0].steps.times),
        predicted_seconds=first / 1e9,
        measured_seconds=second / 1e9,
        median_seconds=float(np.median([t.length_ns for t in sides[1].stages[0].steps.times.values()])) / 1e9,
        difference_seconds=(second - first) / 1e9,
        energy=energy_of(sides[0].manifest, sides[1].manifest),
        between_steps_seconds=_between([stage.steps for stage in sides[1].stages]),
        terms=decides.stage(after).terms,
        phases=decides.stage(after).phases,
        errors=tuple(groups(found)),
        worst=tuple(worst_ops(found)),
        unpaired=unpaired,
        clock=clock,
        warnings=(*said, *_about_sizes(stages), *_about_clock(clock), *_about_unpaired(unpaired)),
        pipeline=decides if sides[0].is_pipeline else None,
    )


def _clock(side: Side, stages: Sequence[PairedStage], number: int) -> Clock:
    """Return the clock of the measured side, as uncertain as the compared step shows it to be."""
    shown = max(disagreement_ns(stage.measured.steps, stage.measured.steps.times[number]) for stage in stages)
    return replace(side.clock, uncertainty_ns=max(shown, side.clock.said_ns))


def _accounts(sides: Sequence[Side], stages: Sequence[PairedStage], chosen: tuple[int, int]) -> list[list[Account]]:
    """Take the chosen step of either side apart, stage by stage; the step is that of all compared ranks."""
    axes, depth = _axes(sides), _depth(sides[0])
    found = []
    several = zip(*((s.predicted, s.measured) for s in stages), strict=True)
    for side, number, runs in zip(sides, chosen, several, strict=True):
        times = [run.steps.times[number].of(run.rows) for run in runs]
        span = span_of(times, from_zero=side.from_zero)
        found.append(
            [
                account(run.steps, replace(each, span_ns=span), stage.has, axes, stage.weights, depth)
                for stage, run, each in zip(stages, runs, times, strict=True)
            ]
        )
    return found


def _unpaired(stages: Sequence[PairedStage]) -> Unpaired:
    return Unpaired(
        tuple(name for stage in stages for name in stage.unpaired.predicted),
        tuple(name for stage in stages for name in stage.unpaired.measured),
    )


def _depth(side: Side) -> tuple[str, ...]:
    """Return the axes that join the stages of a pipeline; none where all ranks have one role."""
    return side.work.grid.depth_axes if side.is_pipeline else ()


def _axes(sides: Sequence[Side]) -> list[str]:
    """Return the mesh's axes, then others that collectives of either trace run over."""
    every = [op for side in sides for stage in side.stages for op in stage.steps.ops]
    others = [op.axis for op in every if op.kind == "collective" and op.axis]
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
        f"{counted(len(names), 'op')} {'is' if len(names) == 1 else 'are'} in {side} only: "
        f"{', '.join(names[:EXAMPLES])}{', …' if names[EXAMPLES:] else ''}"
        for side, names in zip(SIDES, (unpaired.predicted, unpaired.measured), strict=True)
        if names
    ]
