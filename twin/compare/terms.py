"""Terms of two steps side by side: means over ranks, and whether clocks can tell their difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twin.compare.account import AFTER, BEFORE, BETWEEN, LATE, Account
from twin.compare.clocks import Clock


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


def terms_between(
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
