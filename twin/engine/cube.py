"""Arrays over all ranks: the mesh's axes, and groups as the same array with one axis of length 1.

Every array has the logical shape of the mesh. In memory the largest axis lies innermost, so
that numpy's inner loops are long: with one of 8 innermost, everything takes twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.description.grid import Axis, Mesh

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cube:
    """The shape of a job's ranks, and how they lie in memory."""

    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    """Axes from outermost to innermost in memory."""

    @classmethod
    def of(cls, mesh: Mesh) -> Cube:
        """Lay out the ranks of a mesh.

        >>> Cube.of(Mesh(("data", "z", "y", "x"), (4, 16, 2, 8))).order
        (0, 2, 3, 1)
        """
        numbers = range(len(mesh.axes))
        largest = max(numbers, key=lambda axis: (mesh.sizes[axis], -axis))
        others = [axis for axis in numbers if axis != largest]
        return cls(mesh.axes, mesh.sizes, (*others, largest))

    def number(self, axis: Axis) -> int:
        """Return the place of an axis in an array over ranks."""
        return self.axes.index(axis)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(np.prod(self.sizes))

    def shape(self, axis: Axis | None = None) -> tuple[int, ...]:
        """Shape of an array over ranks, or over the groups of an axis."""
        if axis is None:
            return self.sizes
        collapsed = self.number(axis)
        return tuple(1 if i == collapsed else size for i, size in enumerate(self.sizes))

    def from_memory(self, flat: Floats, axis: Axis | None = None) -> Floats:
        """See values that lie in memory order as an array over ranks, or over an axis' groups."""
        shape = self.shape(axis)
        return flat.reshape([shape[i] for i in self.order]).transpose(np.argsort(self.order))

    def zeros(self, axis: Axis | None = None) -> Floats:
        """Return zeros for every rank, or for every group of an axis."""
        return self.from_memory(np.zeros(int(np.prod(self.shape(axis)))), axis)

    def laid_out(self, values: NDArray[np.generic], axis: Axis | None = None) -> Floats:
        """Bring values in rank order (or the order of an axis' groups) into memory order."""
        made = self.zeros(axis)
        made[...] = values.reshape(self.shape(axis))
        return made

    def in_rank_order(self, array: Floats) -> Floats:
        """One value per rank, rank 0 first."""
        return np.ascontiguousarray(np.broadcast_to(array, self.sizes)).reshape(-1)
