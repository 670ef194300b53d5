"""The 4D grid of ranks: `G_data × G_z × G_y × G_x`, x innermost.

rank = ((d · G_z + z) · G_y + y) · G_x + x
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from twin.description import grid as meshes
from twin.description.grid import GridSpec
from twin.description.model import Positive

Axis = Literal["data", "z", "y", "x"]
AXES: tuple[Axis, ...] = ("data", "z", "y", "x")
"""The axes, outermost first."""


class Grid(GridSpec):
    """Sizes of the four axes; ranks that differ in data or z work on different sequences."""

    batch_axes: ClassVar[tuple[str, ...]] = ("data", "z")
    streams: ClassVar[tuple[str, ...]] = ("x", "y", "z_gather", "z_scatter", "data")
    """Gathers and scatters over z are apart, so that both can be in flight."""

    data: Positive = 1
    """Replicas of the model."""
    z: Positive = 1
    """Depth: weights are stored in so many parts, and gathered for use; the batch is split too."""
    y: Positive = 1
    """Tensor parallelism over the rows of normal layers (columns of transposed ones); divides heads."""
    x: Positive = 1
    """Tensor parallelism over the features between blocks; innermost, so packed into a node first."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Sizes in the order of `AXES`: (data, z, y, x)."""
        return self.data, self.z, self.y, self.x


def factorizations(ranks: int) -> Iterator[Grid]:
    """Yield every grid of this many ranks."""
    for data, z, y, x in meshes.factorizations(ranks, len(AXES)):
        yield Grid(data=data, z=z, y=y, x=x)
