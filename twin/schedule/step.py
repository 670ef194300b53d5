"""The schedule of one training step of the 4D algorithm (sections 3 to 5).

For each micro-step forward, loss and backward over all blocks; then the gradients of what is
replicated over z, the data phase, clipping and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

from twin.description.job import Job
from twin.schedule.block import (
    block_backward,
    block_forward,
    embedding_backward,
    embedding_forward,
    loss,
    norm_backward,
    norm_forward,
)
from twin.schedule.emit import Emitter
from twin.schedule.linear import WeightGathers
from twin.schedule.linear import backward as linear_backward
from twin.schedule.linear import forward as linear_forward
from twin.schedule.ops import Op, Repeat, Schedule
from twin.schedule.reduction import Reduction, finish
from twin.schedule.shapes import Linear, Shapes

Use = Callable[[int, Emitter], None]
Block = tuple[Linear, Linear, Linear, Linear]


def generate(job: Job) -> Schedule:
    """Write the schedule of one step; the same for every rank of the grid."""
    shapes = Shapes(job)
    last = job.micro_steps - 1
    ops: list[Op] = []
    if last > 0:
        body = _micro_step("micro{micro}/", job, shapes, Reduction.none(job, shapes))
        ops.append(Repeat("micro", tuple(range(last)), tuple(body)))
    reduction = Reduction.of_last_micro_step(job, shapes)
    ops += _micro_step(f"micro{last}/", job, shapes, reduction)
    end = Emitter("", "reduce")
    finish(end, job, shapes, reduction)
    return Schedule(tuple(ops + end.ops))


def _micro_step(prefix: str, job: Job, shapes: Shapes, reduction: Reduction) -> list[Op]:
    layers = range(job.model.layers)
    blocks = [shapes.block_linears(layer) for layer in layers]
    depth = job.overlap.prefetch_depth if job.overlap.all_gather else None
    root = Emitter(prefix, "fwd")
    _forward(root.under("fwd"), job, shapes, blocks, depth)
    _loss(root, job, shapes, reduction)
    backward = root.under("bwd", phase="bwd")
    again = root.under("recompute", phase="recompute")
    for layer in reversed(layers):
        cached = layer < job.cache_gathered_layers
        under = backward.under(f"block{layer}", layer=layer)
        use: Use = _nothing
        if job.recompute:
            recompute = again.under(f"block{layer}", layer=layer)
            gathers = _gathers(recompute, blocks[layer], job, depth)
            if not cached:
                gathers.enter()
            block_forward(
                recompute, job, shapes, blocks[layer], _nothing if cached else gathers.use
            )
        elif not cached:
            use = _backward_gathers(under, blocks[layer], job, depth)
        reduction.after_backward(
            backward, layer, block_backward(under, job, shapes, blocks[layer], use)
        )
    embedding_backward(backward.under("embedding"), job, shapes)
    reduction.end_of_backward(backward)
    return root.ops


def _forward(emit: Emitter, job: Job, shapes: Shapes, blocks: list[Block],
             depth: int | None) -> None:  # fmt: skip
    emitters = [emit.under(f"block{layer}", layer=layer) for layer in range(len(blocks))]
    order = [linear for block in blocks for linear in block]
    places = [under.under(linear.name)
              for under, block in zip(emitters, blocks, strict=True) for linear in block]  # fmt: skip
    gathers = WeightGathers(
        [*order, shapes.head], [*places, emit.under("head")], job.element_bytes, depth
    )
    gathers.enter()
    embedding_forward(emit.under("embedding"), job, shapes)
    for layer, (under, block) in enumerate(zip(emitters, blocks, strict=True)):

        def use(index: int, at: Emitter, first: int = 4 * layer) -> None:
            gathers.use(first + index, at)

        block_forward(under, job, shapes, block, use)
    norm_forward(emit.under("final_norm"), job, shapes)
    head = emit.under("head")
    gathers.use(len(order), head)
    linear_forward(head, job, shapes.head, shapes.tokens)


def _loss(root: Emitter, job: Job, shapes: Shapes, reduction: Reduction) -> None:
    """Loss, and the backward of head and final norm (the head's weight is still gathered)."""
    loss(root.under("loss", phase="loss"), job, shapes)
    backward = root.under("bwd", phase="bwd")
    pending = linear_backward(backward.under("head"), job, shapes.head, shapes.tokens)
    norm_backward(backward.under("final_norm"), job, shapes)
    reduction.after_backward(backward, None, [] if pending is None else [pending])


def _gathers(
    emit: Emitter, linears: tuple[Linear, ...], job: Job, depth: int | None
) -> WeightGathers:
    """Gathers limited to one block: its first one is exposed."""
    places = [emit.under(linear.name) for linear in linears]
    return WeightGathers(linears, places, job.element_bytes, depth)


def _backward_gathers(
    emit: Emitter, linears: tuple[Linear, ...], job: Job, depth: int | None
) -> Use:
    """Gather dropped weights again in the order of the backward pass."""
    gathers = _gathers(emit, linears[::-1], job, depth)
    gathers.enter()

    def use(index: int, at: Emitter) -> None:
        gathers.use(len(linears) - 1 - index, at)

    return use


def _nothing(_index: int, _emit: Emitter) -> None:
    """The weight is gathered already."""
