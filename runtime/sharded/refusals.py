"""What a job may ask of the twin and no strategy that divides weights with `fully_shard` does here."""

from __future__ import annotations

from twin.description.problems import Problem


def of_one_group(separate: bool | None) -> list[Problem]:
    """Refuse one communicator for gathers and reductions: each has its own here."""
    remedy = "is for simulation; the runtime reduces gradients by a communicator of their own: leave it out"
    return [Problem("separate_reduction_group", remedy, False)] if separate is False else []
