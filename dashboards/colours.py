"""Colours that people with any colour vision tell apart (Okabe and Ito), by what they stand for."""

from __future__ import annotations

BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE, GREY = "#E69F00", "#D55E00", "#CC79A7", "#8c8c8c"

KINDS = {"compute": BLUE, "x": ORANGE, "y": VERMILION, "z": GREEN, "data": PURPLE, "wait": GREY}
"""What an op is: compute, a collective of an axis, or a wait."""
PREDICTED, MEASURED = BLUE, VERMILION
DIVERGING = [[0.0, BLUE], [0.5, "#f7f7f7"], [1.0, VERMILION]]
"""Shorter than predicted, equal, longer."""
