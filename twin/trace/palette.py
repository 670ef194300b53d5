"""One colour for each thing a picture shows, the same in every page, figure and dashboard.

Colours are Okabe and Ito's, which people with any colour vision tell apart, and greys told apart by
lightness. Each is seen on a white page and on a dark one: so there is no black.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
DARK_GREY, GREY, LIGHT_GREY = "#6B6B6B", "#8C8C8C", "#BBBBBB"

AXES: Mapping[str, str] = MappingProxyType({"x": PURPLE, "y": VERMILION, "z": GREEN, "data": DARK_GREY})
"""Collectives of an axis, and all their streams: z_gather and z_scatter have the colour of z."""
OTHER_AXES = ("#C0606B", "#44AA99", "#999933", "#AA4499", "#A87440")
"""Of axes that have no colour of their own: of Paul Tol's muted scheme what differs from the others here, its wine and
brown lighter, which were not seen on a dark page."""
BEYOND: Mapping[str, str] = MappingProxyType(
    {"down": "#7040F0", "up": "#E040E0", "cast": "#50B040", "cpu": "#E04040", "disk": "#6060D0"}
)
"""Copies to and from hosts, their updates, and drives, which go on beside collectives of any axis: as far as five
colours can be from all others here that are seen on white and on dark pages."""
PHASES: Mapping[str, str] = MappingProxyType(
    {"fwd": BLUE, "recompute": SKY, "bwd": ORANGE, "loss": YELLOW, "optimizer": GREY, "reduce": GREY}
)
"""Compute by the phase of the step, where phases are told apart; no axis has one of these colours."""
KINDS: Mapping[str, str] = MappingProxyType({"compute": BLUE, **AXES, "other": OTHER_AXES[0], "wait": LIGHT_GREY})
"""An op by its kind: compute, a collective of an axis, or a wait."""
EVENTS: Mapping[str, str] = MappingProxyType({**PHASES, **AXES})
"""An event of a timeline: compute by phase, a collective by axis."""
PASSES: Mapping[str, str] = MappingProxyType({"F": BLUE, "B": ORANGE, "I": VERMILION, "W": GREEN})
"""Passes of a pipeline, in pictures of their own: forward, backward, input gradients, weight gradients."""
LIGHTEST = 0.6
"""How white the last chunk of a pipeline rank is; the first one has the plain colour."""
IDLE, SLOWEST_DEVICE = LIGHT_GREY, SKY
"""Time in which a rank waits for its peers, or for the slowest device to be expected."""


SEQUENTIAL: tuple[tuple[float, str], ...] = ((0.0, "#CFE3F1"), (0.5, SKY), (1.0, "#003A5C"))
"""A quantity from little to much, light to dark of one hue: readable for all colour vision."""


def axis_colour(axis: str) -> str:
    """Return the colour of an axis; the same one wherever it is asked for.

    >>> axis_colour("z") == GREEN, axis_colour("pipe") in OTHER_AXES
    (True, True)
    """
    return AXES.get(axis) or BEYOND.get(axis) or OTHER_AXES[sum(axis.encode()) % len(OTHER_AXES)]


def pass_colour(kind: str, chunk: int = 0, chunks: int = 1) -> str:
    """Return the colour of a pass: of later chunks a lighter one.

    >>> pass_colour("F") == BLUE, pass_colour("F", 1, 2)
    (True, '#99C7E0')
    """
    white = LIGHTEST * chunk / (chunks - 1) if chunks > 1 else 0.0
    parts = (int(PASSES[kind][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + white * (255 - part)):02X}" for part in parts)
