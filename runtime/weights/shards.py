"""Which part of a full parameter a rank holds: arithmetic for layers, initialisation, checkpoints.

A parameter of full shape [n] or [n, k] is cut twice. First each dim may be split over an axis of
the mesh; dim 0 may consist of parts (q, k, v, or gate and up), not all of a size, that are split each on
their own, so that a rank holds whole heads. Rows are padded if they do not divide. Weights of linears are then
flattened row by row, padded, and cut into equal pieces over one more axis. Any flat range of what a rank
holds is a few rectangles of the full tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from twin.description.grid import Axis, GridSpec


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of the full model and how the grid cuts it."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[Axis | tuple[Axis, ...] | None, ...]
    """Axis that splits each dim, or axes that do together, the outer first."""
    parts: tuple[int, ...] = ()
    """Sizes of the parts of dim 0, each split on its own; () if it is one."""
    cut: Axis | None = None
    """Axis over which it is cut further, flattened; None: it is whole on every rank of the others."""
    cut_rows: bool = False
    """That cut is between rows: of so many each that the last rank has fewer, or none."""
    decay: bool = False
    """Takes part in weight decay: matrices do, vectors do not."""
    init: float | None = None
    """Standard deviation of the normal it starts from; None: `constant` everywhere."""
    uniform: bool = False
    """It starts from a uniform distribution of that deviation instead of a normal one."""
    constant: float = 0.0
    alike: str | None = None
    """The parameter whose first numbers these are too, where two are tied."""
    also: str | None = None
    """Its other name in a checkpoint, where it stands for two that are tied."""
    partial: Axis | None = None
    """Axis whose ranks, equal in the parameter, have a part of its gradient each."""
    only: Axis | None = None
    """Axis of which one rank has it at all."""
    adapter: bool = False
    """Stands beside the model's own parameters, which do not train then."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that it has in a checkpoint."""
        return (self.name,) if self.also is None else (self.name, self.also)

    @property
    def split(self) -> set[Axis]:
        """Axes along which ranks hold different parts."""
        return {axis for dim in range(len(self.axes)) for axis in self.splitting(dim)} | {
            axis for axis in (self.cut, self.only) if axis
        }

    def splitting(self, dim: int) -> tuple[Axis, ...]:
        """Axes that split a dim, the outer first."""
        axes = self.axes[dim]
        return axes if isinstance(axes, tuple) else () if axes is None else (axes,)


@dataclass(frozen=True)
class Rectangle:
    """A rectangle of a full tensor and where its elements lie, row by row, in a flat range."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int
    """Place of its first element in the flat range."""

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.sizes)


@dataclass(frozen=True)
class Part:
    """A part of dim 0: where it begins and how many rows it has, in the full parameter and on one rank."""

    full: int
    size: int
    local: int
    rows: int
    """On a rank, padding included."""


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a parameter."""

    spec: ParameterSpec
    grid: GridSpec
    coordinates: Mapping[Axis, int]

    def _pieces(self, dim: int) -> int:
        return prod(self.grid.size(axis) for axis in self.spec.splitting(dim))

    def _place(self, dim: int) -> int:
        """Return which of the pieces of a dim this rank has."""
        place = 0
        for axis in self.spec.splitting(dim):
            place = place * self.grid.size(axis) + self.coordinates[axis]
        return place

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of dim 0 on this rank, in order."""
        found, full, local = [], 0, 0
        for size in self.spec.parts or self.spec.shape[:1]:
            rows = -(-size // self._pieces(0))
            found.append(Part(full, size, local, rows))
            full, local = full + size, local + rows
        return tuple(found)

    @property
    def part_rows(self) -> int:
        """Rows of the one part of dim 0 on this rank, padding included (for specs of one part)."""
        return self.parts[0].rows

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """Shape gathered over the axis of cuts, padding of rows included: [n/G_o, k/G_c]."""
        rows = sum(part.rows for part in self.parts)
        if len(self.spec.shape) == 1:
            return (rows,)
        return rows, self.spec.shape[1] // self._pieces(1)

    @cached_property
    def gathered(self) -> int:
        """Elements gathered over the axis of cuts, padded to a multiple of what is cut."""
        piece = prod(self.local_shape[1:]) if self.spec.cut_rows else 1
        return -(-prod(self.local_shape) // (self.cuts * piece)) * self.cuts * piece

    @property
    def cuts(self) -> int:
        """Pieces that the flattened parameter is cut into."""
        return self.grid.size(self.spec.cut) if self.spec.cut else 1

    @property
    def replicas(self) -> Axis:
        """The axis along which all ranks hold the same."""
        return self.grid.replicated_over

    @cached_property
    def stored(self) -> int:
        """Elements this rank stores."""
        return self.gathered // self.cuts

    @cached_property
    def counted_once(self) -> bool:
        """True on the one rank whose copy counts among equal ones, replicas apart."""
        others = {self.replicas, *self.spec.split}
        return all(self.coordinates[axis] == 0 for axis in self.grid.axes if axis not in others)

    def rectangles(self, start: int = 0, stop: int | None = None) -> Iterator[Rectangle]:
        """Cut a flat range of the stored elements into rectangles of the full tensor.

        Padding belongs to no rectangle.
        """
        first = self.stored * (self.coordinates[self.spec.cut] if self.spec.cut else 0)
        rows, columns = self.local_shape[0], prod(self.local_shape[1:])
        begin = position = first + start
        end = min(first + (self.stored if stop is None else stop), rows * columns)
        while position < end:
            row, column = divmod(position, columns)
            if column or end - position < columns:
                count, width = 1, min(columns - column, end - position)
            else:
                part = self._part(row)
                count = min((end - position) // columns, part.local + part.rows - row)
                width = columns
            yield from self._rectangle(row, count, column, width, position - begin)
            position += count * width

    def _part(self, row: int) -> Part:
        return next(part for part in reversed(self.parts) if part.local <= row)

    def _rectangle(self, row: int, count: int, column: int, width: int, first: int) -> Iterator[Rectangle]:
        part = self._part(row)
        inside = row - part.local + part.rows * self._place(0)
        count = min(count, part.size - inside)
        if count <= 0:
            return  # rows that pad the last rank's part
        offsets: tuple[int, ...] = (part.full + inside,)
        sizes: tuple[int, ...] = (count,)
        if len(self.spec.shape) == 2:
            column += self.local_shape[1] * self._place(1)
            offsets, sizes = (*offsets, column), (*sizes, width)
        yield Rectangle(offsets, sizes, first)

    @property
    def valid_rows(self) -> int:
        """Rows of the one part of dim 0 that are not padding (for specs of one part)."""
        before = self.part_rows * self._place(0)
        return max(0, min(self.part_rows, self.spec.shape[0] - before))
