"""Meshes of ranks: named axes and their sizes, outermost first, so that the last axis is innermost.

rank = ((a₀ · n₁ + a₁) · n₂ + a₂) · n₃ + … with aᵢ the coordinate along axis i of size nᵢ. Which axes there
are is a strategy's business; nothing here knows any by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from twin.description.spec import Spec

Axis = str
"""The name of an axis of a mesh."""


class Axes:
    """What a mesh and the grid of a job file have in common."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Names, outermost first."""
        raise NotImplementedError

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `axes`."""
        raise NotImplementedError

    @property
    def ranks(self) -> int:
        """Product of the sizes."""
        return prod(self.sizes)

    def size(self, axis: Axis) -> int:
        """Return the size of one axis."""
        return self.sizes[self.axes.index(axis)]

    def inner(self, axis: Axis) -> int:
        """Product of the sizes of the axes inside this one: the stride between group members."""
        return prod(self.sizes[self.axes.index(axis) + 1 :])

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """Coordinates of a rank.

        >>> Mesh(("data", "z", "x"), (2, 2, 2)).coordinates(5)
        {'data': 1, 'z': 0, 'x': 1}
        """
        return {axis: rank // self.inner(axis) % self.size(axis) for axis in self.axes}

    def along(self, communicator: str) -> Axis:
        """Return the axis whose ranks a communicator joins: its name begins with it."""
        return communicator.partition("_")[0]

    def by_axis(self) -> dict[Axis, int]:
        """Size of every axis by its name."""
        return dict(zip(self.axes, self.sizes, strict=True))

    def __str__(self) -> str:
        return " × ".join(f"{axis} {size}" for axis, size in self.by_axis().items())


@dataclass(frozen=True)
class Mesh(Axes):
    """Names and sizes of the axes that a strategy cuts a job's ranks into."""

    axes: tuple[Axis, ...] = ()
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return Axes.__str__(self)


class GridSpec(Axes, Spec):
    """The `grid:` of a job file: each field is an axis, outermost first. Strategies derive theirs."""

    rare_axes: ClassVar[tuple[Axis, ...]] = ()
    """Axes that a grid names only where they have several ranks."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Names, outermost first."""
        return tuple(axis for axis in type(self).model_fields if axis not in self.rare_axes or getattr(self, axis) > 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `axes`."""
        return tuple(getattr(self, axis) for axis in self.axes)

    def size(self, axis: Axis) -> int:
        """Return the size of one axis, a rare one's too."""
        return int(getattr(self, axis)) if axis in self.rare_axes else super().size(axis)

    @property
    def mesh(self) -> Mesh:
        """The same as a mesh."""
        return Mesh(self.axes, self.sizes)

    batch_axes: ClassVar[tuple[Axis, ...]] = ()
    """The axes over which the global batch is split."""

    depth_axes: ClassVar[tuple[Axis, ...]] = ()
    """The axes over which a model's layers are divided."""

    streams: ClassVar[tuple[str, ...]] = ()
    """Names of the communicators along the axes, each of which begins with its axis."""

    @property
    def replicated_over(self) -> Axis:
        """The axis along which all ranks hold the same parameters: the outermost one."""
        return self.axes[0]

    def replica(self, rank: int) -> int:
        """Which part of the global batch a rank works on."""
        at, number = self.coordinates(rank), 0
        for axis in self.batch_axes:
            number = number * self.size(axis) + at[axis]
        return number

    @property
    def replicas(self) -> int:
        """Parts that the global batch is split into; ranks of one part see the same sequences."""
        return prod(self.size(axis) for axis in self.batch_axes)

    @property
    def depth(self) -> int:
        """Parts that layers are divided into."""
        return prod(self.size(axis) for axis in self.depth_axes)

    def __str__(self) -> str:
        return Axes.__str__(self)


def divisors(number: int) -> list[int]:
    """All divisors, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest(target: int, choices: list[int]) -> int:
    """Pick the choice nearest to the target by ratio, the smaller one if tied."""
    return min(choices, key=lambda c: (max(c / target, target / c), c))


def factorizations(ranks: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of every mesh of this many ranks and axes; the innermost grows last.

    >>> list(factorizations(4, 2))
    [(4, 1), (2, 2), (1, 4)]
    """
    if axes == 0:
        if ranks == 1:
            yield ()
        return
    if axes == 1:
        yield (ranks,)
        return
    for innermost in divisors(ranks):
        for outer in factorizations(ranks // innermost, axes - 1):
            yield (*outer, innermost)
