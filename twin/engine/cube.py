"""Arrays over all ranks: the mesh's axes, and groups as the same array with axes of length 1.

Groups are along one axis, or several: of all ranks that differ in those alone. Along none they are single ranks. Where
groups are parts of an axis, as the ranks of a node among those that share weights, the axis is cut in two or more.

Every array has the logical shape of the mesh. In memory the largest axis lies innermost, so
that numpy's inner loops are long: with one of 8 innermost, everything takes twice as long.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

import numpy as np
from numpy.typing import NDArray

from twin.description.grid import Axis, Mesh
from twin.engine.layout import Ints

Floats = NDArray[np.float64]
Along = tuple[int, ...]
"""Places, in an array over ranks, of the axes along which groups lie."""


@dataclass(frozen=True)
class Cube:
    """The shape of a job's ranks, and how they lie in memory."""

    axes: tuple[Axis, ...]
    """Of the mesh."""
    sizes: tuple[int, ...]
    """Of the array: those of the axes, or of their parts."""
    order: tuple[int, ...]
    """Axes from outermost to innermost in memory."""

    @classmethod
    def of(cls, mesh: Mesh, groups: Iterable[Ints] = ()) -> Cube:
        """Lay out the ranks of a mesh, its axes cut where groups of members (groups, size) ask for it.

        >>> Cube.of(Mesh(("data", "z", "y", "x"), (4, 16, 2, 8))).order
        (0, 2, 3, 1)
        >>> Cube.of(Mesh(("data", "z"), (2, 16)), [np.arange(32).reshape(-1, 8)]).sizes
        (2, 2, 8)
        """
        sizes = _cut(mesh.sizes, groups)
        numbers = range(len(sizes))
        largest = max(numbers, key=lambda axis: (sizes[axis], -axis))
        others = [axis for axis in numbers if axis != largest]
        return cls(mesh.axes, sizes, (*others, largest))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(np.prod(self.sizes))

    def along(self, members: Ints) -> Along | None:
        """Return along which axes groups lie, members (groups, size); None if they are no such groups.

        >>> cube = Cube.of(Mesh(("data", "z"), (2, 3)))
        >>> ranks = np.arange(6)
        >>> cube.along(ranks.reshape(2, 3)), cube.along(ranks[None, :]), cube.along(ranks[:, None])
        ((1,), (0, 1), ())
        >>> cube.along(ranks.reshape(3, 2)) is None
        True
        """
        at = np.unravel_index(members, self.sizes)
        found = tuple(axis for axis, place in enumerate(at) if (place != place[:, :1]).any())
        whole = members.shape[1] == np.prod([self.sizes[axis] for axis in found], dtype=int)
        return found if whole and members.size == self.ranks else None

    def shape(self, along: Along = ()) -> tuple[int, ...]:
        """Shape of an array over groups; over ranks, if they are alone."""
        return tuple(1 if i in along else size for i, size in enumerate(self.sizes))

    def from_memory(self, flat: Floats, along: Along = ()) -> Floats:
        """See values that lie in memory order as an array over ranks, or over groups."""
        shape = self.shape(along)
        return flat.reshape([shape[i] for i in self.order]).transpose(np.argsort(self.order))

    def zeros(self, along: Along = ()) -> Floats:
        """Return zeros for every rank, or for every group."""
        return self.from_memory(np.zeros(int(np.prod(self.shape(along)))), along)

    def laid_out(self, values: NDArray[np.generic], along: Along = ()) -> Floats:
        """Bring values in rank order (or the order of groups, by their first ranks) into memory order."""
        made = self.zeros(along)
        made[...] = values.reshape(self.shape(along))
        return made

    def in_rank_order(self, array: Floats) -> Floats:
        """One value per rank, rank 0 first."""
        return np.ascontiguousarray(np.broadcast_to(array, self.sizes)).reshape(-1)


def _cut(sizes: tuple[int, ...], groups: Iterable[Ints]) -> tuple[int, ...]:
    """Cut axes where the first of some groups begins to repeat itself, as far as all cuts agree."""
    bounds = list(accumulate(reversed(sizes), mul, initial=1))
    for members in groups:
        wanted = sorted({*bounds, *_strides(np.sort(members[0]))})
        if not any(after % before for before, after in pairwise(wanted)) and wanted[-1] == bounds[-1]:
            extra = [bound for bound in wanted if bound not in bounds]
            for bound in extra:  # behind the last equal one: axes of one rank stay where they are
                bounds.insert(bisect(bounds, bound), bound)
    return tuple(after // before for before, after in pairwise(bounds))[::-1]


def _strides(members: Ints) -> Iterator[int]:
    """Yield how far apart a group's members are, at each level, and how far each level reaches.

    >>> list(_strides(np.array([0, 1, 8, 9])))
    [1, 2, 8, 16]
    """
    while len(members) > 1:
        steps = np.diff(members)
        stride = int(steps[0])
        run = int(np.argmax(steps != stride)) + 1 if (steps != stride).any() else len(members)
        yield from (stride, stride * run)
        members = members[::run]
