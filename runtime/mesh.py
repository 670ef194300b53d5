"""The 4D grid of ranks on torch.distributed.

rank = ((d · G_z + z) · G_y + y) · G_x + x, x innermost. A rank makes only the groups it belongs
to: its line along each axis. All-gathers and reduce-scatters over z have a communicator each, so
that both can be in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch.distributed as dist

from twin.strategies.four_d.grid import AXES, Axis, Grid

Communicator = Literal["x", "y", "z_gather", "z_scatter", "data"]

AXIS_OF: Mapping[Communicator, Axis] = {"x": "x", "y": "y", "z_gather": "z", "z_scatter": "z", "data": "data"}


@dataclass(frozen=True)
class Mesh:
    """One rank's place in the grid, and the process groups it belongs to."""

    grid: Grid
    rank: int
    coordinates: Mapping[Axis, int]
    groups: Mapping[Communicator, dist.ProcessGroup]
    """Only communicators of more than one rank."""
    everyone: dist.ProcessGroup | None
    """All ranks of the grid; None if there is one only."""

    @classmethod
    def alone(cls) -> Mesh:
        """Make the grid of one rank, which needs no process group."""
        return cls(Grid(), 0, Grid().coordinates(0), {}, None)

    @classmethod
    def create(cls, grid: Grid, *, timeout_seconds: float = 600.0) -> Mesh:
        """Make the groups of this rank; every rank of the grid must call it.

        The grid may be smaller than the world: then the first ranks form it. Raises ValueError
        for a rank outside it.
        """
        if grid.ranks == 1:
            return cls.alone()
        rank = dist.get_rank()
        if rank >= grid.ranks:
            raise ValueError(f"rank {rank} is not in a grid of {grid.ranks} ranks ({grid})")
        timeout = timedelta(seconds=timeout_seconds)
        groups = {
            communicator: dist.new_group(
                line(grid, rank, axis), timeout=timeout, use_local_synchronization=True, group_desc=communicator
            )
            for communicator, axis in AXIS_OF.items()
            if grid.size(axis) > 1
        }
        everyone = dist.group.WORLD
        if dist.get_world_size() != grid.ranks:
            everyone = dist.new_group(list(range(grid.ranks)), timeout=timeout, use_local_synchronization=True)
        return cls(grid, rank, grid.coordinates(rank), groups, everyone)

    def size(self, communicator: Communicator) -> int:
        """Ranks of a communicator."""
        return self.grid.size(AXIS_OF[communicator])

    @property
    def replica(self) -> int:
        """Which part of the global batch this rank works on: data · G_z + z."""
        return self.coordinates["data"] * self.grid.z + self.coordinates["z"]

    def where(self) -> str:
        """Name the rank with its coordinates, for messages."""
        at = ", ".join(f"{axis} {self.coordinates[axis]}" for axis in AXES)
        return f"rank {self.rank} ({at})"

    def members(self, communicator: Communicator) -> list[int]:
        """Ranks of this rank's group, in order of their coordinate."""
        return line(self.grid, self.rank, AXIS_OF[communicator])


def line(grid: Grid, rank: int, axis: Axis) -> list[int]:
    """Ranks that differ from this one in one axis only, in order.

    >>> line(Grid(data=2, z=2, y=1, x=2), 5, "z")
    [5, 7]
    """
    step = grid.inner(axis)
    first = rank - grid.coordinates(rank)[axis] * step
    return [first + i * step for i in range(grid.size(axis))]
