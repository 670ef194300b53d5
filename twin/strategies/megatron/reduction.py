"""Gradients on their way: over data and context ranks, over the ends of the pipeline, into the optimizer.

Megatron's order (`finalize_model_grads`): data-parallel sum, what tensor ranks hold in common under sequence
parallelism, tied embeddings of the first and the last stage, norm, update, and with a distributed optimizer the
gather of what was updated. DeepSpeed sums tied embeddings first, then over data, in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from twin.description.library import CollectiveKind
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies import work
from twin.strategies.megatron.bodies import HEAD, TABLE, Hooks
from twin.strategies.megatron.groups import DATA, EMBEDDING, everyone, replica
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.linear import TENSOR
from twin.strategies.megatron.local import Local, Shape, padded
from twin.strategies.megatron.place import Stage
from twin.strategies.sizes import ADAM_BYTES_PER_ELEMENT, FP32_BYTES

SCALAR_BYTES = 4
BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK = 40e6, 1e6
"""`bucket_size = max(40e6, 1e6 · data ranks)`."""


@dataclass(frozen=True)
class Parameters:
    """Elements that a rank holds."""

    job: MegatronJob
    local: Local

    def ends(self, stage: Stage) -> int:
        """Of a stage, without its blocks: tables, last norm, head.

        A tied head's table is a copy on the last stage, unless that is on the rank of the first one.
        """
        local, model = self.local, self.job.model
        table = local.table + local.positions if stage.first else 0
        shared = model.tied_embeddings and self.job.ends_together
        return table + ((local.last_norm + (0 if shared else local.table)) if stage.last else 0)

    def stage(self, stage: Stage) -> int:
        """Of a stage."""
        return len(stage.layers) * self.local.block + self.ends(stage)

    def replicated(self, stages: Sequence[Stage]) -> int:
        """Those that every tensor rank holds."""
        layers = sum(len(stage.layers) for stage in stages) * self.local.replicated
        first = any(stage.first for stage in stages) * self.local.positions
        return layers + first + any(stage.last for stage in stages) * self.local.last_norm

    def shapes(self, stage: Stage) -> list[Shape]:
        """Of a stage, parameter by parameter."""
        local = self.local
        found = [*local.block_shapes] * len(stage.layers)
        if stage.first:
            found += local.table_shapes
        return found + ([*local.head_shapes] if stage.last else [])

    @property
    def sharers(self) -> int:
        """Ranks that hold the same parameters: data × context, and DualPipe's two directions."""
        directions = 2 if self.job.order == "dualpipe" else 1
        return self.local.grid.data * self.local.grid.context * directions


def bucket_elements(parameters: Parameters) -> float:
    """Elements of a bucket."""
    return max(BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * parameters.sharers)


@dataclass
class Buckets(Hooks):
    """Gradients of one chunk that leave beside its last backward pass."""

    parameters: Parameters
    stage: Stage
    cut: bool
    """Whether in buckets: only of the first chunk of the first stage (`disable_bucketing`)."""
    started: list[str] = field(default_factory=list)
    _filled: int = 0

    def after(self, emit: Emitter, part: int) -> None:
        """Note a block's gradients; a full bucket leaves. Those of the ends leave last."""
        if part in (TABLE, HEAD):
            return
        self._filled += self.parameters.local.block
        if self.cut and self._filled >= bucket_elements(self.parameters):
            self._leave(emit)

    def end(self, emit: Emitter) -> None:
        """Send what is left."""
        self._filled += self.parameters.ends(self.stage)
        self._leave(emit)

    def _leave(self, emit: Emitter) -> None:
        job = self.parameters.job
        if self._filled:
            kind: CollectiveKind = "reduce_scatter" if job.distributed_optimizer else "all_reduce"
            name = f"bucket{len(self.started)}/{kind}"
            self.started.append(emit.start(kind, DATA, self._filled * job.reduced_gradient_bytes, name))
            self._filled = 0


@dataclass
class Gathers(Hooks):
    """Weights of one chunk that come from those who updated them, beside its first forward pass.

    A bucket is waited for where it is used, and the next one is started then.
    """

    parameters: Parameters
    stage: Stage
    cut: bool
    _started: list[str] = field(default_factory=list)
    _waited: int = 0

    def _sizes(self) -> list[tuple[int, int]]:
        """What each bucket begins with, and its elements, in forward order."""
        begin = TABLE if self.stage.first else self.stage.layers.start
        found = [(begin, self.parameters.ends(self.stage))]
        for number in self.stage.layers:
            if self.cut and found[-1][1] >= bucket_elements(self.parameters):
                found.append((number, 0))
            found[-1] = (found[-1][0], found[-1][1] + self.parameters.local.block)
        return found

    def begin(self, emit: Emitter) -> None:
        """Start the first one."""
        _, elements = self._sizes()[len(self._started)]
        name = f"gather{self.stage.chunk}_{len(self._started)}/all_gather"
        self._started.append(emit.start("all_gather", DATA, float(elements * self.parameters.job.element_bytes), name))

    def before(self, emit: Emitter, part: int) -> None:
        """Wait for the bucket that a block begins, and start the next one."""
        sizes = self._sizes()
        if self._waited < len(sizes) and sizes[self._waited][0] == part:
            emit.wait(self._started[self._waited])
            self._waited += 1
            if self._waited < len(sizes):
                self.begin(emit)

    def end(self, emit: Emitter) -> None:
        """A stage without blocks waits for its ends."""
        if not self._waited:
            emit.wait(self._started[0])


def finish(emit: Emitter, parameters: Parameters, stages: Sequence[Stage], started: Sequence[str]) -> None:
    """Write everything behind the last backward pass of a rank; `started` are the reductions under way."""
    job, grid = parameters.job, parameters.local.grid
    deepspeed = job.flavour == "deepspeed"
    if deepspeed:
        _tied(emit, parameters, stages)
    for name in started:
        emit.wait(name)
    total = sum(parameters.stage(stage) for stage in stages)
    if parameters.sharers > 1 and job.weight_parts == 1 and not job.overlap_gradients:
        # DeepSpeed's default all-reduces buckets of which each rank keeps a part
        scatters = job.distributed_optimizer and not deepspeed
        emit.collective("reduce_scatter" if scatters else "all_reduce", DATA, float(total * job.reduced_gradient_bytes))
    if job.flavour == "torch":
        _partial(emit, parameters, stages)
        if job.ranks > 1:
            emit.under("loss").collective("all_reduce", everyone(job), SCALAR_BYTES)
    elif job.sequence_parallel and grid.tensor > 1:
        common = parameters.replicated(stages) * job.main_gradient_bytes
        emit.under("replicated").collective("all_reduce", TENSOR, float(common))
    if not deepspeed:
        _tied(emit, parameters, stages)
    _update(Emitter("optimizer/", "optimizer", ops=emit.ops), parameters, stages, total)


def _partial(emit: Emitter, parameters: Parameters, stages: Sequence[Stage]) -> None:
    """Sum what each tensor rank has a part of: of tokens under sequence parallelism, of heads in their norms.

    Matrices (learned positions) and vectors lie apart, and are sent apart.
    """
    job, local = parameters.job, parameters.local
    if local.grid.tensor == 1:
        return
    number = 0
    for matrices in (True, False):
        shapes = [shape for stage in stages for shape in local.partial(stage.first, len(stage.layers), stage.last)]
        own = sum(padded([shape], job.weight_parts) for shape in shapes if (shape[1] > 1) == matrices)
        if own:
            size = float(own // job.weight_parts * FP32_BYTES)
            emit.under(f"replicated{number}").collective("all_reduce", TENSOR, size)
            number += 1


def _tied(emit: Emitter, parameters: Parameters, stages: Sequence[Stage]) -> None:
    """The table of tokens is on the first stage and again on the last, if the head is tied to it.

    In a V both are on one rank, which has it once.
    """
    job = parameters.job
    if job.model.tied_embeddings and not job.ends_together and any(stage.first or stage.last for stage in stages):
        size = parameters.local.table * job.main_gradient_bytes
        emit.collective("all_reduce", EMBEDDING, float(size), "tied/all_reduce")


def _update(emit: Emitter, parameters: Parameters, stages: Sequence[Stage], total: int) -> None:
    """Norm, clipping and AdamW on the own part, and the weights of all who have updated some."""
    job, grid = parameters.job, parameters.local.grid
    sharded = job.weight_parts > 1
    parts = parameters.sharers if job.distributed_optimizer else job.weight_parts
    own = -(-total // parts)
    if job.flavour == "torch":  # row by row, and the loss behind them
        own = sum(padded(parameters.shapes(stage), parts) for stage in stages) // parts + 1
    emit.compute("clip/norm", work.gradient_norm(own))
    if parts > 1:
        emit.under("clip").collective("all_reduce", everyone(job), SCALAR_BYTES)
    elif grid.pipeline * grid.tensor > 1:
        over = everyone(job) if job.flavour == "torch" else replica(job)
        emit.under("clip").collective("all_reduce", over, SCALAR_BYTES)
    if job.clip_gradients:
        emit.compute("clip/scale", work.gradient_scale(own))
    e = job.element_bytes
    # what fully_shard keeps has no rounded copy: gathers round it
    adam = ADAM_BYTES_PER_ELEMENT + (FP32_BYTES + e if e < FP32_BYTES and not sharded else 0)
    emit.compute("adamw", Memory(float(own * adam), kernels=8, work="adamw"))
    if parts > 1 and not (job.overlap_parameters or sharded):
        emit.collective("all_gather", DATA, float(total * e))
    if job.keeps_rounded:  # once a step; the first micro-batch does it
        elements = sum(len(stage.layers) for stage in stages) * parameters.local.linear_elements
        emit.compute("quantize", work.quantize(job, elements, by_content=job.scales_by_content))
