"""A mesh of ranks on torch.distributed.

A rank makes only the groups it belongs to: its line along each axis, for every communicator that the grid
of its strategy names (`GridSpec.streams`), innermost axis last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from runtime.parallel.host import host_identity
from twin.description.grid import GridSpec

Communicator = str
"""The name of a communicator along an axis, which it begins with."""


@dataclass(frozen=True)
class Mesh:
    """One rank's place in the grid, and the process groups it belongs to."""

    grid: GridSpec
    rank: int
    coordinates: Mapping[str, int]
    groups: Mapping[Communicator, dist.ProcessGroup]
    """Only communicators of more than one rank."""
    everyone: dist.ProcessGroup | None
    """All ranks of the grid; None if there is one only."""
    on_host: frozenset[Communicator] = frozenset()
    """Communicators whose members are all on this host, as far as that was asked: where gloo connects them."""

    @classmethod
    def alone(cls, grid: GridSpec) -> Mesh:
        """Make the mesh of one rank, which needs no process group."""
        return cls(grid, 0, grid.coordinates(0), {}, None)

    @classmethod
    def create(cls, grid: GridSpec, *, timeout_seconds: float = 600.0) -> Mesh:
        """Make the groups of this rank; every rank of the grid must call it.

        The grid may be smaller than the world: then the first ranks form it. Raises ValueError
        for a rank outside it.
        """
        if grid.ranks == 1:
            return cls.alone(grid)
        rank = dist.get_rank()
        if rank >= grid.ranks:
            raise ValueError(f"rank {rank} is not in a grid of {grid.ranks} ranks ({grid})")
        timeout = timedelta(seconds=timeout_seconds)
        groups = {
            communicator: dist.new_group(
                line(grid, rank, grid.along(communicator)),
                timeout=timeout,
                use_local_synchronization=True,
                group_desc=communicator,
                pg_options=ahead_of_kernels(timeout),
            )
            for communicator in grid.streams
            if grid.size(grid.along(communicator)) > 1
        }
        everyone = dist.group.WORLD
        if dist.get_world_size() != grid.ranks:
            everyone = dist.new_group(list(range(grid.ranks)), timeout=timeout, use_local_synchronization=True)
        mesh = cls(grid, rank, grid.coordinates(rank), groups, everyone)
        if dist.get_backend(everyone) != dist.Backend.GLOO:
            return mesh
        hosts: list[Any] = [None] * grid.ranks
        dist.all_gather_object(hosts, host_identity(), group=everyone)
        alike = {name for name in groups if len({hosts[member] for member in mesh.members(name)}) == 1}
        return replace(mesh, on_host=frozenset(alike))

    def size(self, communicator: Communicator) -> int:
        """Ranks of a communicator."""
        return self.grid.size(self.grid.along(communicator))

    def place(self, communicator: Communicator) -> int:
        """This rank's place among those of a communicator."""
        return self.coordinates[self.grid.along(communicator)]

    @property
    def replica(self) -> int:
        """Which part of the global batch this rank works on."""
        return self.grid.replica(self.rank)

    @property
    def of_replicas(self) -> list[Communicator]:
        """Communicators over which ranks work on different sequences, one for each such axis, innermost first."""
        last = {self.grid.along(communicator): communicator for communicator in self.grid.streams}
        return [last[axis] for axis in reversed(self.grid.batch_axes) if self.grid.size(axis) > 1]

    def where(self) -> str:
        """Name the rank with its coordinates, for messages."""
        at = ", ".join(f"{axis} {self.coordinates[axis]}" for axis in self.grid.axes)
        return f"rank {self.rank} ({at})"

    def members(self, communicator: Communicator) -> list[int]:
        """Ranks of this rank's group, in order of their coordinate."""
        return line(self.grid, self.rank, self.grid.along(communicator))

    def plane(self, outer: Communicator, inner: Communicator) -> list[list[int]]:
        """Ranks that differ from this one along two communicators only, in order of both."""
        across = self.grid.along(inner)
        return [line(self.grid, rank, across) for rank in self.members(outer)]


def line(grid: GridSpec, rank: int, axis: str) -> list[int]:
    """Ranks that differ from this one in one axis only, in order.

    >>> from twin.strategies.four_d.grid import Grid
    >>> line(Grid(data=2, z=2, y=1, x=2), 5, "z")
    [5, 7]
    """
    step = grid.inner(axis)
    first = rank - grid.coordinates(rank)[axis] * step
    return [first + i * step for i in range(grid.size(axis))]


def ahead_of_kernels(timeout: timedelta) -> Any:
    """Return a group's options that let NCCL's kernels start before others that wait for the device; None for gloo.

    A product fills a GPU: a collective behind it in the queue of blocks would begin as it ends, and be waited for.
    """
    if dist.get_backend() != dist.Backend.NCCL:
        return None
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    options._timeout = timeout  # a group's own; any other would be warned of
    return options
