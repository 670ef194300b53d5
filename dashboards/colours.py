"""Colours of the dashboard: those of every picture of Fourfold, and what only stands here for something."""

from __future__ import annotations

from twin.trace.palette import BLUE, GREEN, GREY, IDLE, KINDS, ORANGE, PURPLE, SKY, SLOWEST_DEVICE, VERMILION, YELLOW

PREDICTED, MEASURED = BLUE, VERMILION
DIVERGING = [[0.0, BLUE], [0.5, "#f7f7f7"], [1.0, VERMILION]]
"""Shorter than predicted, equal, longer."""

__all__ = [
    "BLUE",
    "DIVERGING",
    "GREEN",
    "GREY",
    "IDLE",
    "KINDS",
    "MEASURED",
    "ORANGE",
    "PREDICTED",
    "PURPLE",
    "SKY",
    "SLOWEST_DEVICE",
    "VERMILION",
    "YELLOW",
]
