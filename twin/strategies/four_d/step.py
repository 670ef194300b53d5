"""The schedule of one training step of the 4D algorithm (sections 3 to 5).

For each micro-step forward, loss and backward over all blocks; then the gradients of what is
replicated over z, the data phase, clipping and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twin.description.library import CollectiveKind
from twin.schedule.emit import Emitter
from twin.schedule.ops import Op, Repeat, Schedule
from twin.strategies.four_d.block import (
    block_backward,
    block_forward,
    documents,
    embedding_backward,
    embedding_forward,
    loss,
    norm_backward,
    norm_forward,
)
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.linear import GradientScatters, WeightGathers
from twin.strategies.four_d.linear import backward as linear_backward
from twin.strategies.four_d.linear import forward as linear_forward
from twin.strategies.four_d.reduction import Reduction, finish
from twin.strategies.four_d.shapes import Linear, Shapes, Unit

Use = Callable[[Linear], None]
"""Makes a linear's gathered weight available to the next op."""


def generate(job: FourDJob) -> Schedule:
    """Write the schedule of one step; the same for every rank of the grid.

    The first micro-step writes the sums of gradients, later ones add to them, and the last may
    start data buckets: what lies between is written once.
    """
    shapes = Shapes(job)
    last = job.micro_steps - 1
    ops: list[Op] = []
    for micro in dict.fromkeys((0, last)):
        if micro == last and last > 1:
            body, _ = _micro_step("micro{micro}/", job, shapes, first=False, last=False)
            ops.append(Repeat("micro", tuple(range(1, last)), tuple(body)))
        own, reduction = _micro_step(f"micro{micro}/", job, shapes, first=micro == 0, last=micro == last)
        ops += own
    end = Emitter("", "reduce")
    finish(end, job, shapes, reduction.buckets)
    return Schedule(tuple(ops + end.ops))


def _micro_step(prefix: str, job: FourDJob, shapes: Shapes, *, first: bool, last: bool) -> tuple[list[Op], Reduction]:
    layers = range(job.model.layers)
    blocks = [shapes.block_linears(layer) for layer in layers]
    scatters = GradientScatters(job, first)
    reduction = Reduction.of(job, shapes, scatters, last=last)
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
            _copy_input(recompute, job, shapes, "to_device")
            weights = _nothing if cached else _gather_again(job, recompute, units)
            block_forward(recompute, job, shapes, linears, weights)
        elif not cached:
            use = _gather_again(job, under, units[::-1])
        block_backward(under, job, shapes, linears, use, scatters)
        reduction.after_backward(backward, layer)
    if job.lora is None:
        embedding_backward(backward.under("embedding"), job, shapes, first=first)
    reduction.end_of_backward(backward)
    return root.ops, reduction


def _forward(emit: Emitter, job: FourDJob, shapes: Shapes, blocks: list[tuple[Linear, ...]]) -> None:
    emitters = [emit.under(f"block{layer}", layer=layer) for layer in range(len(blocks))]
    units = [
        (under, unit) for under, linears in zip(emitters, blocks, strict=True) for unit in shapes.gather_units(linears)
    ]
    gathers = WeightGathers(job, [*units, (emit, shapes.head_unit)])
    gathers.enter()
    documents(emit.under("documents"), job, shapes)
    embedding_forward(emit.under("embedding"), job, shapes)
    for under, linears in zip(emitters, blocks, strict=True):
        _copy_input(under, job, shapes, "to_host")
        block_forward(under, job, shapes, linears, gathers.use)
    norm_forward(emit.under("final_norm"), job, shapes)
    gathers.use(shapes.head)
    linear_forward(emit.under("head"), job, shapes.head, shapes.tokens)


def _loss(root: Emitter, job: FourDJob, shapes: Shapes, reduction: Reduction) -> None:
    """Loss, and the backward of head and final norm (the head's weight is still gathered)."""
    loss(root.under("loss", phase="loss"), job, shapes)
    backward = root.under("bwd", phase="bwd")
    linear_backward(backward, job, shapes.head, shapes.tokens, [shapes.head_unit], reduction.scatters)
    norm_backward(backward.under("final_norm"), job, shapes)
    reduction.after_backward(backward, None)


def _copy_input(emit: Emitter, job: FourDJob, shapes: Shapes, kind: CollectiveKind) -> None:
    """Copy a block's input to the host, or back for its recomputation; nothing runs beside it."""
    if job.recompute_inputs == "host":
        emit.collective(kind, "host", shapes.tokens * shapes.hidden_x * job.element_bytes, f"input_{kind}")


def _gather_again(job: FourDJob, emit: Emitter, units: Sequence[Unit]) -> Use:
    """Gathers limited to one block, for its recomputation or backward: the first is exposed."""
    gathers = WeightGathers(job, [(emit, unit) for unit in units])
    gathers.enter()
    return gathers.use


def _nothing(_linear: Linear) -> None:
    """The weight is gathered already."""
