"""Groups along the axes of a grid, as engines see them."""

from __future__ import annotations

from twin.description.grid import Axes
from twin.engine.layout import Groups, Layout, groups_of
from twin.schedule.communicator import Communicator


def along(grid: Axes, axis: str, layout: Layout) -> Groups:
    """Return the groups of ranks that differ in one axis, with their placements."""
    return groups_of(Communicator.along(grid, axis).members, axis, layout)
