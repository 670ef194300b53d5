"""The schedule of one training step of the 4D algorithm (sections 3 to 5).

For each micro-step forward, loss and backward over all blocks; then the gradients of what is
replicated over z, the data phase, clipping and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twin.description.library import CollectiveKind
from twin.schedule.emit import Emitter
from twin.schedule.ops import Op, Repeat, Schedule
from twin.strategies.four_d.away import WeightsCome
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
from twin.strategies.four_d.halves import interleaved
from twin.strategies.four_d.inputs import InputsBack, InputsLeave
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.linear import GradientScatters, WeightGathers, already_there
from twin.strategies.four_d.linear import backward as linear_backward
from twin.strategies.four_d.linear import forward as linear_forward
from twin.strategies.four_d.reduction import Reduction, finish
from twin.strategies.four_d.shapes import Linear, Shapes, Unit
from twin.strategies.four_d.updated import UpdatedWeights

Use = Callable[[Linear], None]
"""Makes a linear's gathered weight available to the next op."""


def generate(job: FourDJob) -> Schedule:
    """Write the schedule of one step; the same for every rank of the grid.

    The first micro-step writes the sums of gradients, later ones add to them, and the last may
    start data buckets: what lies between is written once.
    """
    shapes = Shapes(job)
    last = job.micro_steps - 1
    updated = UpdatedWeights.of(job, shapes)
    ops: list[Op] = [*updated.ops]
    for micro in dict.fromkeys((0, last)):
        if micro == last and last > 1:
            body, _ = _micro_step("micro{micro}/", job, shapes, None, last=False)
            ops.append(Repeat("micro", tuple(range(1, last)), tuple(body)))
        found = updated if micro == 0 else None
        own, reduction = _micro_step(f"micro{micro}/", job, shapes, found, last=micro == last)
        ops += own
    end = Emitter("", "reduce")
    finish(end, job, shapes, reduction.buckets)
    return Schedule(tuple(ops + end.ops))


def _micro_step(
    prefix: str, job: FourDJob, shapes: Shapes, updated: UpdatedWeights | None, *, last: bool
) -> tuple[list[Op], Reduction]:
    """Write one micro-step: the first of a step if weights that replicas have `updated` are on their way to it."""
    first = updated is not None
    if not job.overlap.halves:
        scatters = GradientScatters(job, first)
        reduction = Reduction.of(job, shapes, scatters, last=last)
        return _passes(prefix, job, shapes, scatters, reduction, updated), reduction
    half = Shapes(job, halves=2)
    held = GradientScatters(job, first, half=0)
    # what the first half gathers is there for the second, which sends what both have summed
    ahead = _passes(f"{prefix}half0/", job, half, held, None, updated)
    scatters = GradientScatters(job, first, half=1)
    reduction = Reduction.of(job, half, scatters, last=last)
    behind = _passes(f"{prefix}half1/", job, half, scatters, reduction, None)
    return interleaved(ahead, behind), reduction


def _passes(
    prefix: str,
    job: FourDJob,
    shapes: Shapes,
    scatters: GradientScatters,
    reduction: Reduction | None,
    updated: UpdatedWeights | None,
) -> list[Op]:
    """Forward, loss and backward of a micro-step, or of a half, which has a `reduction` if gradients leave with it."""
    layers = range(job.model.layers)
    blocks = [shapes.block_linears(layer) for layer in layers]
    root = Emitter(prefix, "fwd")
    backward = root.under("bwd", phase="bwd")
    again = root.under("recompute", phase="recompute")
    gathers = scatters.half != 1
    _forward(root.under("fwd"), job, shapes, blocks, updated, gathers=gathers)
    use_again = _uses_again(job, shapes, again, backward, blocks) if gathers else lambda _layer: already_there
    inputs = InputsBack(job, shapes, again)
    _loss(root, job, shapes, scatters, reduction, inputs)
    for layer in reversed(layers):
        if layer < job.recomputed_layers:
            inputs.back(layer)
        linears, use = blocks[layer], use_again(layer)
        at_block = again.under(f"block{layer}", layer=layer)
        if layer < job.recomputed_layers:
            _copy_input(at_block, job, shapes, "to_device")
            kept, early = layer < job.attention_kept_layers, job.stops_early
            block_forward(at_block, job, shapes, linears, use, attention_kept=kept, stops_early=early)
            use = already_there
        under, made_again = backward.under(f"block{layer}", layer=layer), layer < job.products_kept_layers
        block_backward(under, job, shapes, linears, use, scatters, at_block if made_again else None)
        if reduction is not None:
            reduction.after_backward(backward, layer)
    if job.lora is None:
        embedding_backward(backward.under("embedding"), job, shapes, first=scatters.writes)
    if reduction is not None:
        reduction.end_of_backward(backward)
    return root.ops


def _uses_again(
    job: FourDJob, shapes: Shapes, again: Emitter, backward: Emitter, blocks: Sequence[tuple[Linear, ...]]
) -> Callable[[int], Use]:
    """Return what makes the dropped weights of a block available again, in the order in which they are wanted.

    Limited to one block the first gather of each is exposed; across blocks those of the first block begin at once.
    """

    def units(layer: int) -> list[tuple[Emitter, Unit]]:
        if layer < job.cache_gathered_layers:
            return []
        recomputed = layer < job.recomputed_layers
        under = (again if recomputed else backward).under(f"block{layer}", layer=layer)
        found = shapes.gather_units(blocks[layer])
        return [(under, unit) for unit in (found if recomputed else found[::-1])]

    def limited(layer: int) -> Use:
        if not (own := units(layer)):
            return already_there
        gathers = WeightGathers(job, own, come=come)
        gathers.enter()
        return gathers.use

    everything = [each for layer in reversed(range(len(blocks))) for each in units(layer)]
    come = WeightsCome(job, everything)
    come.begin()
    if not job.overlap.across_blocks:
        return limited
    every = WeightGathers(job, everything, come=come)
    every.enter()
    return lambda layer: already_there if layer < job.cache_gathered_layers else every.use


def _forward(
    emit: Emitter,
    job: FourDJob,
    shapes: Shapes,
    blocks: list[tuple[Linear, ...]],
    updated: UpdatedWeights | None,
    *,
    gathers: bool,
) -> None:
    emitters = [emit.under(f"block{layer}", layer=layer) for layer in range(len(blocks))]
    use: Use = already_there
    if gathers:
        units = [
            (at, unit) for at, linears in zip(emitters, blocks, strict=True) for unit in shapes.gather_units(linears)
        ]
        come = WeightsCome(job, units)
        come.begin()
        ahead = WeightGathers(job, [*units, (emit, shapes.head_unit)], updated, come)
        ahead.enter()
        use = ahead.use
    documents(emit.under("documents"), job, shapes)
    if updated is not None:
        updated.need_replicated(emit.ops)
    embedding_forward(emit.under("embedding"), job, shapes)
    inputs = InputsLeave(job, shapes)
    for layer, (under, linears) in enumerate(zip(emitters, blocks, strict=True)):
        if layer < job.recomputed_layers:
            _copy_input(under, job, shapes, "to_host")
            inputs.leave(under, layer)
        block_forward(under, job, shapes, linears, use)
    inputs.end()
    norm_forward(emit.under("final_norm"), job, shapes)
    use(shapes.head)
    linear_forward(emit.under("head"), job, shapes.head, shapes.tokens)


def _loss(
    root: Emitter,
    job: FourDJob,
    shapes: Shapes,
    scatters: GradientScatters,
    reduction: Reduction | None,
    inputs: InputsBack,
) -> None:
    """Loss, and the backward of head and final norm (the head's weight is still gathered)."""
    loss(root.under("loss", phase="loss"), job, shapes)
    inputs.begin()
    backward = root.under("bwd", phase="bwd")
    linear_backward(backward, job, shapes.head, shapes.tokens, [shapes.head_unit], scatters)
    norm_backward(backward.under("final_norm"), job, shapes)
    if reduction is not None:
        reduction.after_backward(backward, None)


def _copy_input(emit: Emitter, job: FourDJob, shapes: Shapes, kind: CollectiveKind) -> None:
    """Copy a block's input to the host, or back for its recomputation; nothing runs beside it."""
    if job.recompute_inputs == "host":
        emit.collective(kind, "host", shapes.tokens * shapes.hidden_x * job.element_bytes, f"input_{kind}")
