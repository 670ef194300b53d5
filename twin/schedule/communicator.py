"""Communicators and roles: who talks with whom, and who runs the same program.

A communicator is a partition of all or of some ranks into groups of equal size, with a stream of its own.
Its name begins with the axis that its time is booked under: `z_gather` and `z_scatter` run over the
same groups of axis z, and may be in flight together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.description.grid import Mesh
from twin.schedule.ops import axis_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Communicator:
    """A partition of ranks into groups that talk together, and its stream."""

    name: str
    members: Ints
    """(groups, size): the ranks of each group, ascending."""
    partition: str
    """Which partition this is; communicators over the same one have equal `members`."""

    @classmethod
    def along(cls, mesh: Mesh, axis: str, name: str | None = None) -> Communicator:
        """Make the groups of ranks that differ in one axis of a mesh only."""
        return cls(name or axis, axis_members(mesh, axis), axis)

    @classmethod
    def of(cls, name: str, groups: Ints) -> Communicator:
        """Make a partition of its own, such as the pairs of neighbouring pipeline stages, (groups, size)."""
        return cls(name, np.sort(np.asarray(groups, dtype=np.int64), axis=1), name)

    @property
    def axis(self) -> str:
        """The axis that its time is booked under."""
        return axis_of(self.name)

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return int(self.members.shape[1])


def spanned(mesh: Mesh, communicator: Communicator) -> tuple[str, ...]:
    """Return the axes of a mesh in which members of a communicator's groups differ, outermost first."""
    places = np.array(np.unravel_index(communicator.members, mesh.sizes))
    differ = (places != places[:, :, :1]).any(axis=(1, 2))
    return tuple(axis for axis, found in zip(mesh.axes, differ.tolist(), strict=True) if found)


@dataclass(frozen=True, eq=False)
class Role:
    """Ranks that run the same program, such as a pipeline stage."""

    name: str
    ranks: Ints
    """Ascending."""

    @classmethod
    def everyone(cls, ranks: int) -> Role:
        """Let all ranks run the same program."""
        return cls("all", np.arange(ranks, dtype=np.int64))


def axis_members(mesh: Mesh, axis: str) -> Ints:
    """Return the ranks of every group of an axis, shape (groups, size)."""
    ranks = np.arange(mesh.ranks, dtype=np.int64).reshape(mesh.sizes)
    moved = np.moveaxis(ranks, mesh.axes.index(axis), -1)
    return np.ascontiguousarray(moved.reshape(-1, mesh.size(axis)))
