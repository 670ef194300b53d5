"""The schedule of one training step of the 4D algorithm (sections 3 to 5).

For each micro-step forward, loss and backward over all blocks; then the gradients of what is
replicated over z, the data phase, clipping and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from twin.schedule.linear import GradientScatters, WeightGathers
from twin.schedule.linear import backward as linear_backward
from twin.schedule.linear import forward as linear_forward
from twin.schedule.ops import Op, Repeat, Schedule
from twin.schedule.reduction import Reduction, finish
from twin.schedule.shapes import Linear, Shapes, Unit

Use = Callable[[Linear], None]
"""Makes a linear's gathered weight available to the next op."""


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
    root = Emitter(prefix, "fwd")
    _forward(root.under("fwd"), job, shapes, blocks)
    _loss(root, job, shapes, reduction)
    backward = root.under("bwd", phase="bwd")
    again = root.under("recompute", phase="recompute")
    for layer in reversed(layers):
        linears = blocks[layer]
        units = shapes.gather_units(linears)
        cached = layer < job.cache_gathered_layers
        under = backward.under(f"block{layer}", layer=layer)
        use: Use = _nothing
        if job.recompute:
            recompute = again.under(f"block{layer}", layer=layer)
            weights = _nothing if cached else _gather_again(job, recompute, units)
            block_forward(recompute, job, shapes, linears, weights)
        elif not cached:
            use = _gather_again(job, under, units[::-1])
        scatters = GradientScatters(job, under, units)
        block_backward(under, job, shapes, linears, use, scatters)
        reduction.after_backward(backward, layer, scatters.in_flight)
    embedding_backward(backward.under("embedding"), job, shapes)
    reduction.end_of_backward(backward)
    return root.ops


def _forward(emit: Emitter, job: Job, shapes: Shapes, blocks: list[tuple[Linear, ...]]) -> None:
    emitters = [emit.under(f"block{layer}", layer=layer) for layer in range(len(blocks))]
    units = [(under, unit) for under, linears in zip(emitters, blocks, strict=True)
             for unit in shapes.gather_units(linears)]  # fmt: skip
    gathers = WeightGathers(job, [*units, (emit, shapes.head_unit)])
    gathers.enter()
    embedding_forward(emit.under("embedding"), job, shapes)
    for under, linears in zip(emitters, blocks, strict=True):
        block_forward(under, job, shapes, linears, gathers.use)
    norm_forward(emit.under("final_norm"), job, shapes)
    gathers.use(shapes.head)
    linear_forward(emit.under("head"), job, shapes.head, shapes.tokens)


def _loss(root: Emitter, job: Job, shapes: Shapes, reduction: Reduction) -> None:
    """Loss, and the backward of head and final norm (the head's weight is still gathered)."""
    loss(root.under("loss", phase="loss"), job, shapes)
    backward = root.under("bwd", phase="bwd")
    scatters = GradientScatters(job, backward, [shapes.head_unit])
    linear_backward(backward.under("head"), job, shapes.head, shapes.tokens, scatters)
    norm_backward(backward.under("final_norm"), job, shapes)
    reduction.after_backward(backward, None, scatters.in_flight)


def _gather_again(job: Job, emit: Emitter, units: Sequence[Unit]) -> Use:
    """Gathers limited to one block, for its recomputation or backward: the first is exposed."""
    gathers = WeightGathers(job, [(emit, unit) for unit in units])
    gathers.enter()
    return gathers.use


def _nothing(_linear: Linear) -> None:
    """The weight is gathered already."""
