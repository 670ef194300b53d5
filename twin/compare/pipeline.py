"""Stages of a pipeline side by side, and which of them decides the step.

Every rank's step is its own time and its bubbles. The *critical stage* is the one with the least bubble, mean over its
ranks: the step cannot be shorter than what its ranks do themselves, and no other stage does more. It decides the step
as far as its own time goes; what it has left of bubble is what the whole pipeline adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twin.compare.account import Account
from twin.compare.bubbles import is_bubble
from twin.compare.terms import Term


@dataclass(frozen=True)
class ComparedStage:
    """Both steps on the ranks of one stage. `terms` and `phases` each sum to the difference of the steps."""

    name: str
    ranks: int
    """Compared."""
    predicted_bubble_seconds: float
    measured_bubble_seconds: float
    terms: tuple[Term, ...]
    phases: tuple[Term, ...]

    @classmethod
    def of(cls, name: str, ranks: int, terms: tuple[Term, ...], phases: tuple[Term, ...]) -> ComparedStage:
        """Sum up the bubbles among the terms."""
        bubbles = [term for term in terms if is_bubble(term.name)]
        predicted, measured = (
            sum(getattr(term, f"{side}_seconds") for term in bubbles) for side in ("predicted", "measured")
        )
        return cls(name, ranks, predicted, measured, terms, phases)


@dataclass(frozen=True)
class ComparedPipeline:
    """All stages that both runs have."""

    critical: str
    """The stage that decides the measured step."""
    predicted_critical: str
    """The stage that decides the predicted step."""
    stages: tuple[ComparedStage, ...]

    def stage(self, name: str) -> ComparedStage:
        """Find a stage by its name."""
        return next(stage for stage in self.stages if stage.name == name)


def critical(accounts: Sequence[Account]) -> int:
    """Return which of the stages' accounts has the least bubble for each rank; the first one if several have.

    Compared as whole numbers: a / m < b / n if a · n < b · m.
    """
    bubbles = [sum(ns for term, ns in account.terms.items() if is_bubble(term)) for account in accounts]
    best = 0
    for number, account in enumerate(accounts):
        if bubbles[number] * accounts[best].ranks < bubbles[best] * account.ranks:
            best = number
    return best
