"""The 4D grid of ranks: `G_data × G_z × G_y × G_x`, x innermost.

rank = ((d · G_z + z) · G_y + y) · G_x + x
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from twin.description.model import Positive
from twin.description.spec import Spec

Axis = Literal["data", "z", "y", "x"]
AXES: tuple[Axis, ...] = ("data", "z", "y", "x")
"""The axes, outermost first."""


class Grid(Spec):
    """Sizes of the four axes."""

    data: Positive = 1
    z: Positive = 1
    y: Positive = 1
    x: Positive = 1

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Sizes in the order of `AXES`: (data, z, y, x)."""
        return self.data, self.z, self.y, self.x

    @property
    def ranks(self) -> int:
        """Product of the sizes."""
        return self.data * self.z * self.y * self.x

    def size(self, axis: Axis) -> int:
        """Return the size of one axis."""
        return self.sizes[AXES.index(axis)]

    def inner(self, axis: Axis) -> int:
        """Product of the sizes of the axes inside this one: the stride between group members."""
        product = 1
        for size in self.sizes[AXES.index(axis) + 1 :]:
            product *= size
        return product

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """Coordinates of a rank.

        >>> Grid(data=2, z=2, y=1, x=2).coordinates(5)
        {'data': 1, 'z': 0, 'y': 0, 'x': 1}
        """
        return {axis: rank // self.inner(axis) % self.size(axis) for axis in AXES}

    def __str__(self) -> str:
        return " × ".join(f"{axis} {size}" for axis, size in zip(AXES, self.sizes, strict=True))


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


def factorizations(ranks: int) -> Iterator[Grid]:
    """Yield every grid of this many ranks."""
    for x in divisors(ranks):
        for y in divisors(ranks // x):
            for z in divisors(ranks // x // y):
                yield Grid(data=ranks // x // y // z, z=z, y=y, x=x)
