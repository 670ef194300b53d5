"""A head whose weight is the table of tokens: two layouts of one matrix.

The table (V, h/G_x) is whole on every y and z rank, the head's weight is cut over both. The head's is the one that is
trained: it takes the table's gradient too, before gradients are summed over data; when it is updated, it is
gathered over z and y, and copied into the table. So both stay equal to the last bit.
"""

from __future__ import annotations

from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory

TIED = Place("tied")


def add_table(context: FourDContext) -> None:
    """Add the table's gradient, complete over z, to that of this rank's part of the head; nothing is left of it."""
    head, table = _both(context)

    def run() -> None:
        columns = table.shard.local_shape[1]
        gradient = table.local_gradient
        for rectangle in head.shard.rectangles():
            row, column = rectangle.offsets[0], rectangle.offsets[1] % columns
            height, width = rectangle.sizes
            target = head.gradient[rectangle.first : rectangle.first + rectangle.count].view(height, width)
            target += gradient[row : row + height, column : column + width]
        gradient.zero_()

    moved = float(3 * head.gradient.nbytes + table.gradient.nbytes)
    context.ops.compute(TIED, "add", run, lambda: Memory(moved, work="accumulate"), phase="reduce")


def tie(context: FourDContext) -> None:
    """Gather the head's updated weight over z and y, and copy it into the table."""
    head, table = _both(context)
    collectives, grid = context.collectives, context.grid
    weight = head.weight.detach()
    if grid.z > 1:
        weight = collectives.all_gather(TIED, "z_gather", weight, phase="optimizer").wait()
    rows, columns = head.shard.local_shape
    weight = weight[: rows * columns]
    if grid.y > 1:
        weight = collectives.all_gather(TIED, "y", weight.contiguous(), phase="optimizer").wait()
    used = weight[: table.shard.stored]

    def run() -> None:
        context.store.put(table.start, used)

    def describe() -> Memory:
        # into what is computed with; rounded, into the master weights too: of replicas that share them each has
        # its part, on average
        copied = 2.0 * used.nbytes
        if context.store.rounds:
            copied += used.numel() * (used.element_size() + context.master_type.itemsize) / context.optimizer_parts
        return Memory(copied, work="copy")

    context.ops.compute(TIED, "copy", run, describe, phase="optimizer")


def _both(context: FourDContext) -> tuple[Parameter, Parameter]:
    parameters = context.store.parameters
    return parameters["head.weight"], parameters["embedding.tokens"]
