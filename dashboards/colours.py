"""Colours of the dashboard: those of every picture of Fourfold, and what only stands here for something."""

from __future__ import annotations

from twin.trace.palette import BLUE, GREEN, GREY, IDLE, KINDS, ORANGE, PURPLE, SKY, SLOWEST_DEVICE, VERMILION, YELLOW

PREDICTED, MEASURED = FIRST, SECOND = BLUE, VERMILION
"""The two runs of a pair, wherever they stand side by side; no part of a difference has one of these colours."""
DIVERGING = [[0.0, BLUE], [0.5, "#f7f7f7"], [1.0, VERMILION]]
"""Shorter than predicted, equal, longer."""

__all__ = [
    "BLUE",
    "DIVERGING",
    "FIRST",
    "GREEN",
    "GREY",
    "IDLE",
    "KINDS",
    "MEASURED",
    "ORANGE",
    "PREDICTED",
    "PURPLE",
    "SECOND",
    "SKY",
    "SLOWEST_DEVICE",
    "VERMILION",
    "YELLOW",
]
