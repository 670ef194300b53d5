"""The schedule of one step with plain data parallelism: a serial model, and buckets of gradients.

PyTorch's DistributedDataParallel reduces gradients in buckets, in the order in which the backward pass
finishes with parameters: a bucket is full when it holds `bucket_bytes` or more, and its all-reduce starts then,
beside the rest of the backward pass of the last micro-step. What is left is the last bucket. (So it is from
the second step on; in the first one DDP still goes by the order in which parameters were registered.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Attention, Gemm, Memory
from twin.schedule.ops import Op, Repeat, Schedule
from twin.strategies import work
from twin.strategies.ddp.job import DdpJob
from twin.strategies.sizes import ADAM_BYTES_PER_ELEMENT, FP32_BYTES

LOSS_ELEMENTS = 1
HEAD = "head"
"""The linear that never has a bias."""


@dataclass
class Buckets:
    """Gradients of finished parameters on their way over data."""

    job: DdpJob
    emit: Emitter
    reduces: bool
    """True in the last micro-step of several ranks: the others only add to the sums."""
    started: list[str] = field(default_factory=list)
    _bytes: int = 0

    def ready(self, *elements: int) -> None:
        """Note that the gradients of parameters of these sizes are finished, one after the other."""
        for count in elements:
            self._bytes += count * self.job.element_bytes
            if self._bytes >= self.job.bucket_bytes:
                self.flush()

    def flush(self) -> None:
        """Start what is in the bucket."""
        if self.reduces and self._bytes:
            name = f"bucket{len(self.started)}/all_reduce_data"
            self.started.append(self.emit.start("all_reduce", "data", self._bytes, name))
        self._bytes = 0


def generate(job: DdpJob) -> Schedule:
    """Write the schedule of one step; the same for every rank."""
    last = job.micro_steps - 1
    ops: list[Op] = []
    if last > 1:
        body, _ = _micro_step("micro{micro}/", job)
        between = [Repeat("micro", tuple(range(1, last)), tuple(body))]
    else:
        between = []
    started: list[str] = []
    for micro in dict.fromkeys((0, last)):
        if micro == last and last > 0:
            ops += between
        own, started = _micro_step(f"micro{micro}/", job, first=micro == 0, last=micro == last)
        ops += own
    end = Emitter("", "reduce")
    _finish(end, job, started)
    return Schedule(tuple(ops + end.ops))


def _micro_step(prefix: str, job: DdpJob, *, first: bool = False, last: bool = False) -> tuple[list[Op], list[str]]:
    step = _Step(job)
    root = Emitter(prefix, "fwd")
    step.forward(root.under("fwd"))
    loss = root.under("loss", phase="loss")
    for part, kernel in work.loss(job, step.m, job.model.vocabulary).items():
        loss.compute(part, kernel)
    backward = root.under("bwd", phase="bwd")
    buckets = Buckets(job, backward, reduces=last and job.concrete_grid.ranks > 1)
    step.backward(backward, buckets)
    buckets.flush()
    if not last and sums_apart(job.element_bytes, job.micro_steps):
        size = job.model.parameters * added_bytes(job.element_bytes, first=first)
        root.under("reduce", phase="reduce").compute("accumulate", Memory(float(size), work="accumulate"))
    return root.ops, buckets.started


class _Step:
    """Sizes of one micro-step: m tokens, width h, e bytes a number."""

    def __init__(self, job: DdpJob) -> None:
        self.job, self.model = job, job.model
        self.e = job.element_bytes
        self.m = job.concrete_micro_sequences * self.model.sequence
        self.stream = float(self.m * self.model.hidden * self.e)

    def forward(self, emit: Emitter) -> None:
        """Embedding, blocks, final norm, head."""
        learned = self.model.positions == "learned"
        # a position's row serves all sequences
        passes = 4 + 1 / self.job.concrete_micro_sequences if learned else 2
        emit.under("embedding").compute("lookup", Memory(passes * self.stream, 1 + learned, work="embedding/lookup"))
        for layer in range(self.model.layers):
            self._block_forward(emit.under(f"block{layer}", layer=layer))
        self._norm(emit, "final_norm")
        self._linear(emit, HEAD, self.model.vocabulary, self.model.hidden)

    def _block_forward(self, block: Emitter) -> None:
        linears = self.model.block_linears
        self._norm(block, "norm1")
        self._linear(block, "qkv", *linears["qkv"])
        self._rotary(block)
        block.compute("attention", self._attention(backward=False))
        self._linear(block, "projection", *linears["projection"])
        block.compute("residual1", Memory(3 * self.stream, work="residual"))
        self._norm(block, "norm2")
        self._linear(block, "mlp_up", *linears["mlp_up"])
        block.compute(self.model.mlp_kind, self._activation(backward=False))
        self._linear(block, "mlp_down", *linears["mlp_down"])
        block.compute("residual2", Memory(3 * self.stream, work="residual"))

    def backward(self, emit: Emitter, buckets: Buckets) -> None:
        """The same the other way round; gradients of parameters are ready as they come."""
        self._linear_backward(emit, buckets, HEAD, self.model.vocabulary, self.model.hidden)
        self._norm_backward(emit, buckets, "final_norm")
        for layer in reversed(range(self.model.layers)):
            self._block_backward(emit.under(f"block{layer}", layer=layer), buckets)
        tables = [self.model.vocabulary * self.model.hidden]
        if self.model.positions == "learned":
            tables.append(self.model.sequence * self.model.hidden)
        kernel = work.lookup_gradient_by_autograd(self.job, self.m * self.model.hidden, *tables)
        emit.under("embedding").compute("gradient", kernel)
        buckets.ready(*reversed(tables))  # autograd comes to what was added last first

    def _block_backward(self, block: Emitter, buckets: Buckets) -> None:
        linears = self.model.block_linears
        self._linear_backward(block, buckets, "mlp_down", *linears["mlp_down"])
        block.compute(self.model.mlp_kind, self._activation(backward=True))
        self._linear_backward(block, buckets, "mlp_up", *linears["mlp_up"])
        self._norm_backward(block, buckets, "norm2")
        block.compute("residual2", Memory(3 * self.stream, work="residual"))
        self._linear_backward(block, buckets, "projection", *linears["projection"])
        block.compute("attention", self._attention(backward=True))
        self._rotary(block)
        packed = float(self.m * sum(self.model.qkv_parts) * self.e)
        block.compute("pack", Memory(2 * packed, work="pack"))
        self._linear_backward(block, buckets, "qkv", *linears["qkv"])
        self._norm_backward(block, buckets, "norm1")
        block.compute("residual1", Memory(3 * self.stream, work="residual"))

    def _norm(self, emit: Emitter, name: str) -> None:
        emit.under(name).compute(
            "normalize", Memory(work.norm_passes(self.job)[0] * self.stream, work="norm/normalize")
        )

    def _norm_backward(self, emit: Emitter, buckets: Buckets, name: str) -> None:
        moved = work.norm_passes(self.job)[1] * self.stream
        emit.under(name).compute("gradient", Memory(moved, kernels=2, work="norm/gradient"))
        buckets.ready(*[self.model.hidden] * (1 + self.model.norm_biases))

    def _linear(self, emit: Emitter, name: str, n: int, k: int) -> None:
        emit.under(name).compute("gemm", Gemm(self.m, n, k, "TN", element_bytes=self.e))

    def _linear_backward(self, emit: Emitter, buckets: Buckets, name: str, n: int, k: int) -> None:
        under = emit.under(name)
        under.compute("weight_gradient", Gemm(n, k, self.m, "NT", element_bytes=self.e))
        under.compute("input_gradient", Gemm(self.m, k, n, "NN", element_bytes=self.e))
        has_bias = name != HEAD and self.model.has_bias(name)
        if has_bias:
            under.compute("bias_gradient", Memory(float(self.m * n * self.e), work="bias_gradient"))
        buckets.ready(n * k, *([n] if has_bias else []))

    def _rotary(self, emit: Emitter) -> None:
        """Turn queries and keys in steps: what turns is read three times and written twice; tables for each."""
        model = self.model
        if model.positions == "rotary":
            queries, keys, _ = model.qkv_parts
            turned = (2 + 3 * model.rotary_size / model.head_size) * self.m * (queries + keys) * self.e
            tables = 2 * model.sequence * (model.head_size + model.rotary_size) * self.e
            emit.compute("rotary", Memory(turned + tables, kernels=6, work="rotary/steps"))

    def _attention(self, *, backward: bool) -> Attention:
        model = self.model
        return Attention(
            sequences=self.job.concrete_micro_sequences,
            sequence_length=model.sequence,
            heads=model.heads,
            head_size=model.head_size,
            form=self.job.attention,
            backward=backward,
            element_bytes=self.e,
            kv_heads=model.key_value_heads if model.key_value_heads < model.heads else None,
        )

    def _activation(self, *, backward: bool) -> Memory:
        after = float(self.m * self.e * self.model.mlp_hidden)
        if self.model.mlp_kind == "swiglu":
            return Memory((11 if backward else 5) * after, kernels=4 if backward else 2, work="swiglu/steps")
        return Memory((3 if backward else 2) * after, work=self.model.mlp_kind)


def sums_apart(element_bytes: int, micro_steps: int) -> bool:
    """Whether micro-steps are added up in fp32 beside autograd's own sums, which are as narrow as the gradients."""
    return element_bytes < FP32_BYTES and micro_steps > 1


def added_bytes(element_bytes: int, *, first: bool) -> int:
    """Bytes that adding a gradient's element to its sum in fp32 moves; autograd's is read, and set to zero."""
    return 2 * element_bytes + (FP32_BYTES if first else 2 * FP32_BYTES)


def collected_bytes(element_bytes: int, micro_steps: int, *, alone: bool = False) -> int:
    """Bytes that a gradient's element costs besides the products, in a step.

    Every micro-step adds it to its sum (two reads, one write: PyTorch does so inside the backward pass, where it
    has no name); at the end it is read, written in fp32, and set to zero. With sums apart, what was summed is added to
    what goes into a bucket, or of one rank `alone` to what is collected.
    """
    apart = sums_apart(element_bytes, micro_steps)
    joined = 2 * element_bytes + FP32_BYTES if apart and not alone else 0
    return 3 * micro_steps * element_bytes + joined + added_bytes(element_bytes, first=not (apart and alone))


def _finish(root: Emitter, job: DdpJob, started: list[str]) -> None:
    """Wait for the buckets, sum the loss, and update."""
    backward = root.under("bwd", phase="bwd")  # a wait belongs to the phase of its start
    for bucket in started:
        backward.wait(bucket)
    elements, e = job.model.parameters, job.element_bytes
    emit = root.under("reduce")
    emit.compute(
        "collect",
        Memory(
            float(elements * collected_bytes(e, job.micro_steps, alone=job.concrete_grid.ranks == 1)), work="collect"
        ),
    )
    if job.concrete_grid.ranks > 1:
        emit.collective("all_reduce", "data", LOSS_ELEMENTS * FP32_BYTES, "loss/all_reduce_data")
    elements += LOSS_ELEMENTS
    update = root.under("optimizer", phase="optimizer")
    update.compute("clip/norm", Memory(float(elements * FP32_BYTES), kernels=8, work="clip/norm"))
    if job.clip_gradients:
        update.compute("clip/scale", Memory(2.0 * elements * FP32_BYTES, kernels=4, work="clip/scale"))
    adam = ADAM_BYTES_PER_ELEMENT + (FP32_BYTES + e if e < FP32_BYTES else 0)
    update.compute("adamw", Memory(float(elements * adam), kernels=8, work="adamw"))
