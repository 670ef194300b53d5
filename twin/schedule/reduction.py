"""Gradients after the backward pass: accumulate, sum over z and data, clip, update.

* The reduce-scatters over z are waited for at the end of each micro-step's backward pass;
  with overlapped data buckets, one block later in the last micro-step, so that the block's
  gradients can go to the data axis while others are computed.
* Sharded optimizer states: reduce-scatter over data, update a part, all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.description.job import Job
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.schedule.ops import Communicator
from twin.schedule.shapes import FP32_BYTES, Shapes

ADAM_BYTES_PER_ELEMENT = 28
"""Read gradient, master weight and two moments; write the last three, all fp32."""
SCALAR_BYTES = 4


@dataclass
class Reduction:
    """What one micro-step does with finished gradients."""

    job: Job
    shapes: Shapes
    overlapped: bool
    _scatters: list[str] = field(default_factory=list)
    _ready: list[int | None] = field(default_factory=list)
    _bucket_bytes: float = 0.0
    buckets: list[str] = field(default_factory=list)
    """Data all-reduces in flight when the micro-step ends."""

    @classmethod
    def none(cls, job: Job, shapes: Shapes) -> Reduction:
        """For all micro-steps but the last: only accumulate."""
        return cls(job, shapes, overlapped=False)

    @classmethod
    def of_last_micro_step(cls, job: Job, shapes: Shapes) -> Reduction:
        """For the last micro-step: start data buckets if they overlap."""
        overlapped = job.data_reduction.mode == "overlapped" and job.concrete_grid.data > 1
        return cls(job, shapes, overlapped)

    def after_backward(self, emit: Emitter, layer: int | None, scatters: list[str]) -> None:
        """Note that a block's (or, with layer None, the head's) weight gradients are on their way."""
        if self.overlapped:
            self._settle(emit)
        self._scatters += scatters
        self._ready.append(layer)

    def end_of_backward(self, emit: Emitter) -> None:
        """Wait for all reduce-scatters, once."""
        if self.overlapped:
            self._settle(emit)
            if self._bucket_bytes:
                self._flush(emit)
            rest = self.shapes.replicated_elements
            rest -= self.job.model.layers * self.shapes.block_replicated_elements
            emit.compute("accumulate", _accumulate(self.job, rest, self.shapes.other_tensors))
            return
        for name in self._scatters:
            emit.wait(name)
        shapes = self.shapes
        tensors = self.job.model.layers * shapes.block_tensors + shapes.other_tensors + 1
        emit.compute("accumulate", _accumulate(self.job, shapes.local_elements, tensors))

    def _settle(self, emit: Emitter) -> None:
        """Wait for what earlier blocks started, accumulate it, and fill a bucket."""
        for name in self._scatters:
            emit.wait(name)
        self._scatters.clear()
        for layer in self._ready:
            head = layer is None
            shapes = self.shapes
            sharded = shapes.head.shard_elements if head else shapes.block_shard_elements
            elements = sharded + (0 if head else shapes.block_replicated_elements)
            name = "head/accumulate" if head else f"block{layer}/accumulate"
            emit.compute(name, _accumulate(self.job, elements, 1 if head else shapes.block_tensors))
            self._bucket_bytes += sharded * FP32_BYTES
        self._ready.clear()
        if self._bucket_bytes >= self.job.data_reduction.bucket_bytes:
            self._flush(emit)

    def _flush(self, emit: Emitter) -> None:
        name = f"bucket{len(self.buckets)}/all_reduce_data"
        self.buckets.append(emit.start("all_reduce", "data", self._bucket_bytes, name))
        self._bucket_bytes = 0.0


def _accumulate(job: Job, elements: int, kernels: int) -> Memory:
    # read the new gradient, read and write the fp32 sum; a kernel for each parameter tensor
    return Memory(float(elements * (job.element_bytes + 2 * FP32_BYTES)), kernels=kernels)


def finish(root: Emitter, job: Job, shapes: Shapes, reduction: Reduction) -> None:
    """Everything after the last backward pass."""
    grid, mode = shapes.grid, job.data_reduction.mode
    emit = root.under("reduce")
    replicated_bytes = shapes.replicated_elements * FP32_BYTES
    if grid.z > 1:
        emit.collective("all_reduce", "z_scatter", replicated_bytes, "replicated/all_reduce_z")
    elements = shapes.local_elements
    if grid.data > 1:
        if mode == "sharded":
            emit.collective("reduce_scatter", "data", _padded(elements, grid.data) * FP32_BYTES)
            elements = _padded(elements, grid.data) // grid.data
        elif mode == "overlapped":
            name = emit.start("all_reduce", "data", replicated_bytes, "replicated/all_reduce_data")
            for bucket in [*reduction.buckets, name]:
                emit.wait(bucket)
        else:
            emit.collective("all_reduce", "data", elements * FP32_BYTES)
    optimizer = root.under("optimizer", phase="optimizer")
    if job.clip_gradients:
        _clip(optimizer.under("clip"), shapes, elements, sharded=mode == "sharded")
    # in reduced precision the weight that is computed with is written too
    adam = ADAM_BYTES_PER_ELEMENT + (job.element_bytes if job.element_bytes < FP32_BYTES else 0)
    optimizer.compute("adamw", Memory(float(elements * adam), kernels=8))
    if mode == "sharded" and grid.data > 1:
        size = elements * grid.data * job.element_bytes
        optimizer.collective("all_gather", "data", size)
    optimizer.compute(
        "zero_gradients", Memory(float(shapes.local_elements * FP32_BYTES), kernels=4)
    )


def _clip(emit: Emitter, shapes: Shapes, elements: int, *, sharded: bool) -> None:
    """Gradient norm: one scalar all-reduce over every axis a parameter is sharded on."""
    grid = shapes.grid
    emit.compute("norm", Memory(float(elements * FP32_BYTES), kernels=8))
    sharded_over: tuple[tuple[int, Communicator], ...] = (
        (grid.x, "x"), (grid.y, "y"), (grid.z, "z_scatter"),
    )  # fmt: skip
    for size, communicator in sharded_over:
        if size > 1:
            emit.collective("all_reduce", communicator, SCALAR_BYTES)
    if sharded and grid.data > 1:
        emit.collective("all_reduce", "data", SCALAR_BYTES)
    emit.compute("scale", Memory(2.0 * elements * FP32_BYTES, kernels=4))


def _padded(elements: int, parts: int) -> int:
    return -(-elements // parts) * parts
