"""Which rectangles of which full tensors a rank writes and reads: pure arithmetic.

Three full tensors belong to every parameter `name`: `model/name`, the master weights, and
AdamW's moments `exp_avg/name` and `exp_avg_sq/name`. Ranks that hold equal copies share the work: each
writes an equal part of what they hold in common, so that every element is written once and no
replica waits for another that writes everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from runtime.weights.shards import Rectangle, Shard
from runtime.weights.store import Parameter, ParameterStore

MODEL = "model"
MOMENTS = ("exp_avg", "exp_avg_sq")
MIN_SHARE = 1 << 16
"""Elements below which replicas do not share: a file of crumbs is slower than a little waiting."""
MAX_CHUNK = 1 << 24
"""Elements of a chunk (64 MiB in fp32), if a row is not longer: a chunk is read and verified as a whole,
even by a rank that needs a corner of it."""


@dataclass(frozen=True)
class Range:
    """A flat range of what this rank stores of a parameter."""

    parameter: Parameter
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Their number."""
        return self.end - self.begin

    def in_store(self) -> slice:
        """Where it lies in the store's flat buffers."""
        return slice(self.parameter.start + self.begin, self.parameter.start + self.end)


@dataclass(frozen=True)
class Piece:
    """A rectangle of a full tensor and this rank's copy of it in host memory."""

    tensor: str
    """Such as `exp_avg/blocks.0.qkv.weight`."""
    shape: tuple[int, ...]
    """Of the full tensor."""
    offsets: tuple[int, ...]
    values: torch.Tensor
    """Contiguous, in the shape of the rectangle."""


def tensor_names(parameter: str) -> list[str]:
    """Names of the full tensors of a parameter."""
    return [f"{kind}/{parameter}" for kind in (MODEL, *MOMENTS)]


def within(store: ParameterStore, part: slice) -> Iterator[Range]:
    """What lies in a part of the store's flat buffers, by parameter."""
    for parameter in store.in_order():
        begin = max(part.start - parameter.start, 0)
        end = min(part.stop - parameter.start, parameter.shard.stored)
        if begin < end:
            yield Range(parameter, begin, end)


def to_write(store: ParameterStore, part: slice, *, over_data: bool) -> Iterator[Range]:
    """What this rank writes of a part of the flat buffers.

    `over_data`: ranks that differ in data hold the same part; else (optimizer states sharded over
    data) each its own.
    """
    for held in within(store, part):
        begin, end = share(held.parameter.shard, held.elements, over_data=over_data)
        if begin < end:
            yield Range(held.parameter, held.begin + begin, held.begin + end)


def share(shard: Shard, elements: int, *, over_data: bool) -> tuple[int, int]:
    """Part (begin, end) of a range that this rank writes among those that hold the same range."""
    split = shard.spec.split
    copies, mine = 1, 0
    for axis in shard.grid.axes:
        if axis not in split and (axis != shard.replicas or over_data):
            size = shard.grid.size(axis)
            copies, mine = copies * size, mine * size + shard.coordinates[axis]
    shares = min(copies, max(1, elements // MIN_SHARE))
    if mine >= shares:
        return 0, 0
    return elements * mine // shares, elements * (mine + 1) // shares


def rectangles(held: Range, most_elements: int = MAX_CHUNK) -> Iterator[Rectangle]:
    """Rectangles of the full parameter in a range, none much larger than `most_elements`."""
    for whole in held.parameter.shard.rectangles(held.begin, held.end):
        rows, columns = whole.sizes[0], whole.count // whole.sizes[0]
        step = max(1, most_elements // columns)
        for row in range(0, rows, step):
            yield Rectangle(
                (whole.offsets[0] + row, *whole.offsets[1:]),
                (min(step, rows - row), *whole.sizes[1:]),
                whole.first + row * columns,
            )


def pieces_of(
    held: Range, kind: str, flat: torch.Tensor, first: int, names: tuple[str, ...] | None = None
) -> Iterator[Piece]:
    """Pieces of one kind of tensor, whose values lie in `flat` from `first` on; of each of `names`, if not its own."""
    spec = held.parameter.spec
    for rectangle in rectangles(held):
        begin = first + rectangle.first
        values = flat[begin : begin + rectangle.count].view(rectangle.sizes)
        for name in names or (spec.name,):
            yield Piece(f"{kind}/{name}", spec.shape, rectangle.offsets, values)
