"""The schedule of one step of sharded data parallelism: every rank runs the whole model on its own sequences.

What a rank computes is what the 4D algorithm computes on a grid of one, or, where ranks share layers, of its axis y:
that is how Megatron-LM cuts them, but for the table of tokens, whose rows it divides too. What is gathered and reduced,
and when, is the flavour's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from twin.description.job import Job
from twin.description.offload import Tier
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.schedule.ops import Op, Repeat, Schedule, axis_of
from twin.strategies import offload, work
from twin.strategies.fetch import Fetches, Leaves
from twin.strategies.four_d import block as compute
from twin.strategies.four_d.grid import Grid as FourDGrid
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.linear import GradientScatters
from twin.strategies.four_d.linear import backward as linear_backward
from twin.strategies.four_d.linear import forward as linear_forward
from twin.strategies.four_d.memory import block_bytes
from twin.strategies.four_d.shapes import Linear, Shapes
from twin.strategies.four_d.shapes import Unit as FourDUnit
from twin.strategies.fsdp.gathers import Gathers
from twin.strategies.fsdp.groups import Groups
from twin.strategies.fsdp.job import FsdpJob
from twin.strategies.fsdp.reductions import Reductions
from twin.strategies.fsdp.units import Unit, Units, part
from twin.strategies.held import held_update
from twin.strategies.sizes import ADAM_BYTES_PER_ELEMENT, FP32_BYTES

SCALAR_BYTES = 4
CALLED = {"y": "tensor"}
"""What is an axis of the 4D algorithm there is another one here."""


class Unreduced(GradientScatters):
    """Weight gradients that stay where they are made: what becomes of them is not the linear's business."""

    def after(self, emit: Emitter, units: Sequence[FourDUnit], linear: Linear) -> None:
        """Do nothing."""


def alone(job: FsdpJob) -> FourDJob:
    """Return the 4D job of one rank's compute."""
    common = {name: getattr(job, name) for name in Job.model_fields if name not in ("strategy", "grid")}
    return FourDJob.model_construct(
        **common, grid=FourDGrid(data=job.concrete_grid.replicas, y=job.concrete_grid.tensor)
    )


@dataclass(frozen=True)
class Step:
    """Everything that the parts of a step need."""

    job: FsdpJob

    @cached_property
    def inner(self) -> FourDJob:
        """One rank's compute."""
        return alone(self.job)

    @cached_property
    def shapes(self) -> Shapes:
        """Its sizes."""
        return Shapes(self.inner)

    @cached_property
    def units(self) -> Units:
        """What travels together."""
        return Units(self.job)

    @property
    def activations(self) -> Tier | None:
        """Where what blocks keep for their backward pass lies; None: on the device."""
        if self.job.offload is None or self.job.machine.device.type == "cpu":  # whose memory is the host's
            return None
        return self.job.offload.activations

    @property
    def held(self) -> bool:
        """Whether blocks themselves let their inputs go and take them back, inside their gathered weights."""
        return self.job.flavour != "deepspeed"

    def name_of_kept(self, way: str) -> str:
        """Name what moves of a block, up or down: its input, or what else it keeps."""
        return f"input_{way}" if self.held else f"activations_{way}"

    def recomputed(self, layer: int) -> bool:
        """Tell whether a block is computed again for its backward pass."""
        return self.job.recompute and not (self.job.offload is not None and self.job.offload.swaps(layer))

    def kept_bytes(self, layer: int) -> float:
        """What a block keeps for its backward pass: its input, where it is recomputed."""
        if self.recomputed(layer):
            return float(self.job.element_bytes * self.shapes.tokens * self.shapes.hidden_x)
        return self._block_bytes

    @cached_property
    def _block_bytes(self) -> float:
        return block_bytes(self.inner, self.shapes)

    @property
    def layers(self) -> range:
        """Numbers of the blocks."""
        return range(self.job.model.layers)


def generate(job: FsdpJob) -> Schedule:
    """Write the schedule of one step; the same for every rank."""
    step = Step(job)
    last = job.micro_steps - 1
    ops: list[Op] = []
    for micro in dict.fromkeys((0, last)):
        if micro == last and last > 1:
            body = _micro_step("micro{micro}/", step, first=False, last=False)
            ops.append(Repeat("micro", tuple(range(1, last)), tuple(body)))
        ops += _micro_step(f"micro{micro}/", step, first=micro == 0, last=micro == last)
    end = Emitter("", "optimizer")
    if job.flavour == "fsdp2":
        _sum_loss(end.under("reduce", phase="reduce"), job)
    _update(end.under("optimizer"), step)
    return Schedule(tuple(ops + end.ops))


def _micro_step(prefix: str, step: Step, *, first: bool, last: bool) -> list[Op]:
    root = Emitter(prefix, "fwd", called=CALLED)
    _forward(root.under("fwd"), step)
    loss = root.under("loss", phase="loss")
    compute.loss(loss, step.inner, step.shapes)
    _backward(root.under("bwd", phase="bwd"), root.under("recompute", phase="recompute"), step, first=first, last=last)
    return root.ops


def _forward(emit: Emitter, step: Step) -> None:
    inner, shapes, units = step.inner, step.shapes, step.units
    blocks = [emit.under(f"block{layer}", layer=layer) for layer in step.layers]
    order = [(emit.under(units.first.name), units.first)]
    order += [(under, unit) for layer, under in zip(step.layers, blocks, strict=True) for unit in units.block(layer)]
    order += [(emit.under(units.last.name), units.last)] if units.last is not None else []
    gathers = Gathers(step.job, order)
    if units.last is not None:  # the model is not a unit itself: it goes on to its first without a gather
        compute.documents(emit.under("documents"), inner, shapes)
    gathers.begin()
    gathers.use(units.first.name)
    leaves = None if step.activations is None else Leaves(step.activations, step.name_of_kept("down"))
    if units.last is None:
        compute.documents(emit.under("documents"), inner, shapes)
    compute.embedding_forward(emit.under("embedding"), inner, shapes)
    if units.tensor > 1:  # each has some rows of the table
        size = float(inner.element_bytes * shapes.tokens * shapes.hidden_x)
        emit.under("embedding").collective("all_reduce", "tensor", size)
    for layer, under in zip(step.layers, blocks, strict=True):
        gathers.use(f"block{layer}")
        own = leaves if layer != step.layers[-1] else None  # the last block's are wanted at once
        if own is not None and step.held:
            own.leave(under, step.kept_bytes(layer))
        compute.block_forward(under, inner, shapes, shapes.block_linears(layer), _use(gathers, layer))
        if own is not None and not step.held:
            own.leave(under, step.kept_bytes(layer))
    if leaves is not None:
        leaves.end()
    if units.last is not None:
        gathers.use(units.last.name)
    gathers.end()
    compute.norm_forward(emit.under("final_norm"), inner, shapes)
    linear_forward(emit.under("head"), inner, shapes.head, shapes.tokens)


def _backward(backward: Emitter, again: Emitter, step: Step, *, first: bool, last: bool) -> None:
    job, inner, shapes, units = step.job, step.inner, step.shapes, step.units
    # autograd makes a new gradient in every micro-step: no product adds to the last one's
    own_part = units.own(job.concrete_grid.optimizer_parts)
    reductions, products = Reductions(job, own_part, first, last), Unreduced(inner, first=True)
    blocks = [backward.under(f"block{layer}", layer=layer) for layer in step.layers]
    order: list[tuple[Emitter, Unit]] = []
    for layer in reversed(step.layers):
        wanted = units.block(layer) if step.recomputed(layer) else units.block(layer)[::-1]
        order += [(blocks[layer], unit) for unit in wanted if not unit.keep]
    if not units.first.keep:
        order.append((backward.under(units.first.name), units.first))
    gathers = Gathers(job, order, backward=True)
    repeated = [again.under(f"block{layer}", layer=layer) for layer in step.layers]
    fetches = _fetches(step, repeated if step.held else blocks)
    if fetches is not None and step.held:
        fetches.begin()
    gathers.begin()  # the head is there: its hook asks for what comes next
    if fetches is not None and not step.held:
        fetches.begin()
    linear_backward(backward, inner, shapes.head, shapes.tokens, [shapes.head_unit], products)
    compute.norm_backward(backward.under("final_norm"), inner, shapes)
    if units.last is not None and units.head_weight:  # a tied one's gradient leaves with the table's
        reductions.ready(backward.under(units.last.name), units.last)
    for layer in reversed(step.layers):
        under, linears = blocks[layer], shapes.block_linears(layer)
        comes = fetches if layer != step.layers[-1] else None
        if comes is not None and not step.held:
            comes.use(step.layers[-1] - 1 - layer)
        gathers.use(f"block{layer}")
        if comes is not None and step.held:
            comes.use(step.layers[-1] - 1 - layer)
        if step.recomputed(layer):
            early = job.stops_early
            compute.block_forward(repeated[layer], inner, shapes, linears, _use(gathers, layer), stops_early=early)
        compute.block_backward(under, inner, shapes, linears, _use(gathers, layer), products)
        for unit in units.block(layer)[::-1]:
            reductions.ready(under, unit)
    gathers.use(units.first.name)
    gathers.end()
    tables = (units.vocabulary * job.model.hidden, job.model.position_rows * job.model.hidden)
    kernel = work.lookup_gradient_by_autograd(job, shapes.tokens * shapes.hidden_x, *filter(None, tables))
    backward.under("embedding").compute("gradient", kernel)
    reductions.ready(backward.under(units.first.name), units.first)
    if units.persistent:
        reductions.ready(backward.under("small"), Unit("small", units.persistent))
    reductions.end(backward)


def _fetches(step: Step, blocks: Sequence[Emitter]) -> Fetches | None:
    """Let what blocks keep for their backward pass come back, the last but one's first."""
    if step.activations is None:
        return None
    layers = step.layers[-2::-1]
    parts = [(blocks[each], step.kept_bytes(each)) for each in layers]
    return Fetches(step.activations, parts, step.name_of_kept("up"))


def _use(gathers: Gathers, layer: int) -> Callable[[Linear], None]:
    """Gather a block linear by linear, where its linears travel alone."""
    return lambda linear: gathers.use(f"block{layer}/{linear.name}")


def _sum_loss(emit: Emitter, job: FsdpJob) -> None:
    """Sum the loss over all ranks, one axis after the other."""
    grid, groups = job.concrete_grid, Groups.of(job)
    over = {"weights": groups.scatter, "gradients": groups.scatter, "optimizer": groups.optimizer, "data": groups.data}
    for communicator in dict.fromkeys(name for axis, name in over.items() if grid.size(axis) > 1):
        emit.collective("all_reduce", communicator, SCALAR_BYTES, f"loss/all_reduce_{axis_of(communicator)}")


def _update(emit: Emitter, step: Step) -> None:
    """Norm, clipping and AdamW on the own part, and the weights of all who have updated some."""
    job = step.job
    grid, e = job.concrete_grid, job.element_bytes
    # the runtime's sum of the loss lies behind its gradients
    own, groups = step.units.own(grid.optimizer_parts) + (job.flavour == "fsdp2"), Groups.of(job)
    clip, deepspeed = emit.under("clip"), job.flavour == "deepspeed"
    beyond = deepspeed and job.offload is not None and job.offload.optimizer is not None
    if not beyond:  # else each gradient's norm is taken as it leaves
        clip.compute("norm", Memory(float(own * FP32_BYTES), kernels=8, work="clip/norm"))
    if grid.optimizer_parts > 1:
        all_parts = grid.optimizer == 1 and job.flavour != "deepspeed"  # and replicas have equal gradients
        clip.collective("all_reduce", groups.scatter if all_parts else groups.replicas, SCALAR_BYTES)
    if grid.tensor > 1:
        clip.collective("all_reduce", "tensor", SCALAR_BYTES)
    if job.clip_gradients and not beyond:  # the host scales them as it updates
        clip_bytes = 2.0 * own * FP32_BYTES
        emit.compute("clip/scale", Memory(clip_bytes, kernels=4, work="clip/scale"))
    if beyond and job.offload is not None:
        offload.update(emit, job, job.offload, own)
        _gather_updated(emit, step)
        return
    rounds = e < FP32_BYTES and grid.weights == 1
    if not deepspeed and (update := held_update(job, job.offload, rounds=rounds)) is not None:
        update.emit(emit, step.units.spans(grid.optimizer_parts))
        return
    # FSDP computes with what it gathers; DeepSpeed and replicas keep a rounded copy, made anew
    copied = FP32_BYTES + e if e < FP32_BYTES and (job.flavour == "deepspeed" or grid.weights == 1) else 0
    emit.compute("adamw", Memory(float(own * (ADAM_BYTES_PER_ELEMENT + copied)), kernels=8, work="adamw"))
    _gather_updated(emit, step)


def _gather_updated(emit: Emitter, step: Step) -> None:
    """Gather the weights of all who have updated some."""
    job, total = step.job, step.units.total
    grid, e, groups = job.concrete_grid, job.element_bytes, Groups.of(job)
    if grid.optimizer * grid.gradients > 1:
        # FSDP's parts of weights are in fp32 and have no other form
        wide = FP32_BYTES if grid.weights > 1 and job.flavour != "deepspeed" else e
        emit.collective("all_gather", groups.update, part(total, grid.weights) * wide)
