"""Two runs of one job held against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twin.compare.account import AFTER, BEFORE, BETWEEN, LATE, OTHER_TERMS, Account, account, terms_of
from twin.compare.clocks import Clock, disagreement_ns
from twin.compare.errors import ErrorGroup, OpError, PairedRun, groups, samples, worst_ops
from twin.compare.jobs import differences
from twin.compare.side import Side, read_side
from twin.compare.steps import OpFacts, Steps
from twin.description.problems import DescriptionError, fail

MIN_PAIRED = 0.5
"""Of the ops of either trace; below that they are of different programs."""
EXAMPLES = 5
PHASES = {name: OTHER_TERMS[name] for name in (BEFORE, AFTER)}
SIDES = ("the first trace", "the second trace")


@dataclass(frozen=True)
class Term:
    """One part of both steps, seconds, mean over ranks."""

    name: str
    label: str
    predicted_seconds: float
    measured_seconds: float
    difference_seconds: float
    """Measured less predicted, rounded once from whole nanoseconds."""
    unexplained: bool = False
    """True if no op accounts for it: the stream stands still for the host."""
    below_clocks: bool = False
    """True if the clocks of the measured ranks are too uncertain to tell it from nothing."""


@dataclass(frozen=True)
class Unpaired:
    """Ops that only one trace has."""

    predicted: tuple[str, ...]
    measured: tuple[str, ...]


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
    ranks, lost = _common_ranks(sides)
    # ranks that one row stands for on both sides are the same rank many times
    rows, weights = np.unique([side.place[ranks] for side in sides], axis=1, return_counts=True)
    ours, theirs = (
        PairedRun(side.steps, of, weights, np.zeros(0, dtype=np.int64)) for side, of in zip(sides, rows, strict=True)
    )
    paired, unpaired, sizes = _pair(*sides)
    number = _chosen_step(theirs.steps, step)
    first = _chosen_step(ours.steps, None)
    times = [ours.steps.times[first].of(ours.rows), theirs.steps.times[number].of(theirs.rows)]
    axes = _axes(sides)
    accounts = [
        account(run.steps, t, lambda op: op.op in paired, axes, weights.tolist())
        for run, t in zip((ours, theirs), times, strict=True)
    ]
    found = samples(*(replace(run, columns=_columns(run.steps, paired)) for run in (ours, theirs)))
    shown = disagreement_ns(theirs.steps, theirs.steps.times[number])
    clock = replace(sides[1].clock, uncertainty_ns=max(shown, sides[1].clock.said_ns))
    warnings = [
        *_about_kinds(kinds),
        *sides[0].warnings,
        *sides[1].warnings,
        *lost,
        *sizes,
        *_about_clock(clock),
        *_about_unpaired(unpaired),
    ]
    count, (before, after) = len(ranks), accounts
    return Comparison(
        job=sides[1].text("job", "name"),
        grid=str(sides[0].work.grid),
        kinds=kinds,
        machines=(sides[0].text("job", "machine", "name"), sides[1].text("job", "machine", "name")),
        ranks=count,
        ranks_of_job=sides[0].work.grid.ranks,
        step=number,
        steps=tuple(theirs.steps.times),
        predicted_seconds=before.length_ns / 1e9,
        measured_seconds=after.length_ns / 1e9,
        difference_seconds=(after.length_ns - before.length_ns) / 1e9,
        between_steps_seconds=_between(theirs.steps),
        terms=_terms(before, after, before.terms, after.terms, terms_of(axes), clock),
        phases=_terms(before, after, before.phases, after.phases, PHASES, clock),
        errors=tuple(groups(found)),
        worst=tuple(worst_ops(found)),
        unpaired=unpaired,
        clock=clock,
        warnings=tuple(warnings),
    )


def _axes(sides: Sequence[Side]) -> list[str]:
    """Return the mesh's axes, then others that collectives of either trace run over."""
    others = [op.axis for side in sides for op in side.steps.ops if op.kind == "collective" and op.axis]
    return list(dict.fromkeys([*sides[0].work.grid.axes, *sides[1].work.grid.axes, *others]))


def _common_ranks(sides: Sequence[Side]) -> tuple[NDArray[np.int64], list[str]]:
    missing = [np.flatnonzero(side.place < 0) for side in sides]
    ranks = np.flatnonzero((sides[0].place >= 0) & (sides[1].place >= 0))
    if not len(ranks):
        raise fail("ranks", "the traces have no rank in common")
    warnings = [
        f"{len(gone)} of {len(side.place)} ranks are not in {side.origin}, such as rank {gone[0]}; they are left "
        "out on both sides, and the step may be longer than what is compared"
        for side, gone in zip(sides, missing, strict=True)
        if len(gone)
    ]
    return ranks, warnings


def _pair(first: Side, second: Side) -> tuple[dict[str, None], Unpaired, list[str]]:
    """Join ops by their ids; ops that are not the same thing in both are an error."""
    ours, theirs = ({op.op: op for op in side.steps.ops} for side in (first, second))
    paired = {name: None for name in ours if name in theirs}
    unpaired = Unpaired(tuple(n for n in ours if n not in theirs), tuple(n for n in theirs if n not in ours))
    if len(paired) < MIN_PAIRED * max(len(ours), len(theirs)):
        raise fail(
            "ops",
            f"only {len(paired)} of {len(ours)} and {len(theirs)} ops have the same names; the traces "
            "are of different programs",
        )
    for name in paired:
        if (a := _sort(ours[name])) != (b := _sort(theirs[name])):
            raise fail(name, f"is {a} in the first trace and {b} in the second: they are of different programs")
    other = [name for name in paired if not _same_size(ours[name], theirs[name])]
    sizes = (
        [f"{len(other)} paired ops have other bytes or flops in the second trace, such as {other[0]}"] if other else []
    )
    return paired, unpaired, sizes


def _sort(op: OpFacts) -> str:
    return f"a {op.kind} on {op.stream}" + (f" over {op.axis}" if op.axis else "") + f" in phase {op.phase}"


def _same_size(a: OpFacts, b: OpFacts) -> bool:
    return bool(np.allclose((a.bytes, a.flops), (b.bytes, b.flops), rtol=1e-6, atol=0.5))


def _columns(steps: Steps, paired: Mapping[str, None]) -> NDArray[np.int64]:
    place = {op.op: i for i, op in enumerate(steps.ops) if op.kind != "wait"}
    return np.array([place[name] for name in paired if name in place], dtype=np.int64)


def _chosen_step(steps: Steps, step: int | None) -> int:
    """Return the step that is asked for, or the (lower) median by length."""
    if step is not None:
        if step not in steps.times:
            raise fail("--step", f"choose from {', '.join(map(str, steps.times))}", step)
        return step
    ordered = sorted(steps.times, key=lambda s: (steps.times[s].length_ns, s))
    return ordered[(len(ordered) - 1) // 2]


def _between(steps: Steps) -> float | None:
    """Median over ranks and steps."""
    gaps = [steps.times[b].arrival.min(1) - steps.times[a].end.max(1) for a, b in pairwise(steps.times) if b == a + 1]
    return float(np.median(gaps)) / 1e9 if gaps else None


def _terms(
    before: Account,
    after: Account,
    ours: Mapping[str, int],
    theirs: Mapping[str, int],
    labels: Mapping[str, str],
    clock: Clock,
) -> tuple[Term, ...]:
    """Means over ranks of what is summed over them, and whether clocks can tell the difference."""
    terms = []
    for name in {**ours, **theirs}:
        a, b = ours.get(name, 0), theirs.get(name, 0)
        if a or b:
            # each wait that is split, each begin and end, is uncertain by as much as the clocks are
            splits = max(before.waits.get(name, 0), after.waits.get(name, 0), name in {BEFORE, AFTER})
            unsure = b != a and abs(b - a) <= splits * clock.uncertainty_ns * after.ranks
            seconds = [ns / after.ranks / 1e9 for ns in (a, b, b - a)]
            terms.append(
                Term(
                    name,
                    labels.get(name, name),
                    seconds[0],
                    seconds[1],
                    seconds[2],
                    unexplained=name in {BETWEEN, LATE},
                    below_clocks=unsure,
                )
            )
    return tuple(terms)


def _about_kinds(kinds: tuple[str, str]) -> list[str]:
    if kinds == ("predicted", "measured"):
        return []
    return [f"both traces are {kinds[0]}: below, “predicted” means the first and “measured” the second"]


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
