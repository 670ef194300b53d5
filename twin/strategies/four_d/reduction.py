"""Gradients after the backward pass: sum over z and data, clip, update.

* The last reduce-scatters over z are waited for at the end of each micro-step's backward pass;
  with overlapped data buckets, one block later in the last micro-step, so that the block's
  gradients can go to the data axis while others are computed.
* Sharded optimizer states: reduce-scatter over data, update a part, all-gather. Overlapped, every bucket is
  reduce-scattered beside the backward pass, and gathered beside the next forward pass (`updated`).
* The loss is one more element behind the gradients and is summed with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from twin.description.library import CollectiveKind
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies import work
from twin.strategies.four_d.away import leave_updated, moved_weights
from twin.strategies.four_d.buckets import HEAD, LOSS_ELEMENTS, REPLICATED, buckets_of, own_elements
from twin.strategies.four_d.grid import Axis
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.linear import GradientScatters
from twin.strategies.four_d.shapes import Shapes
from twin.strategies.four_d.trained import Trained
from twin.strategies.held import held_update
from twin.strategies.sizes import ADAM_BYTES_PER_ELEMENT, FP32_BYTES

SCALAR_BYTES = 4
PARTIAL_AXES: tuple[Axis, ...] = ("y", "x")
"""Axes of which each rank may have a part of a gradient, in the order in which they are summed over."""


@dataclass
class Reduction:
    """What one micro-step does with finished gradients."""

    job: FourDJob
    shapes: Shapes
    scatters: GradientScatters
    overlapped: bool
    """Whether data buckets start beside this backward pass."""
    _ready: list[int | None] = field(default_factory=list)
    _sent: int = 0
    """Reduce-scatters that the blocks in `_ready` and before have started."""
    _bucket_elements: int = 0
    buckets: list[str] = field(default_factory=list)
    """Data all-reduces, or reduce-scatters, in flight when the micro-step ends."""

    @classmethod
    def of(cls, job: FourDJob, shapes: Shapes, scatters: GradientScatters, *, last: bool) -> Reduction:
        """For one micro-step; all but the last only accumulate."""
        overlapped = last and job.data_reduction.beside_backward and job.concrete_grid.data > 1
        return cls(job, shapes, scatters, overlapped)

    def after_backward(self, emit: Emitter, layer: int | None) -> None:
        """Note that a block's (or, with layer None, the head's) weight gradients are on their way.

        A tied head's are not whole before the embedding's backward pass.
        """
        if self.overlapped:
            self._settle(emit)
            if layer is not None or not self.job.model.tied_embeddings:
                self._ready.append(layer)
            self._sent = self.scatters.started

    def end_of_backward(self, emit: Emitter) -> None:
        """Wait for what is still in flight, and send what no bucket carries yet."""
        self.scatters.finish()
        if self.overlapped:
            self._settle(emit)
            if self._bucket_elements:
                self._flush(emit)

    def _settle(self, emit: Emitter) -> None:
        """Wait for what earlier blocks started, and fill a bucket with it."""
        self.scatters.finish(self._sent)
        trained = Trained(self.job, self.shapes)
        for layer in self._ready:
            self._bucket_elements += trained.bucket_elements(layer)
        self._ready.clear()
        if self._bucket_elements * FP32_BYTES >= self.job.data_reduction.bucket_bytes:
            self._flush(emit)

    def _flush(self, emit: Emitter) -> None:
        kind, elements = _over_data(self.job, self._bucket_elements)
        name = f"bucket{len(self.buckets)}/{kind}_data"
        self.buckets.append(emit.start(kind, "data", elements * FP32_BYTES, name))
        self._bucket_elements = 0


def _over_data(job: FourDJob, elements: int) -> tuple[CollectiveKind, int]:
    """Return how a bucket of so many elements is summed over data, and its elements then: in equal parts, or whole."""
    data = job.concrete_grid.data
    return ("reduce_scatter", -(-elements // data) * data) if job.data_reduction.sharded else ("all_reduce", elements)


def finish(root: Emitter, job: FourDJob, shapes: Shapes, buckets: list[str]) -> None:
    """Everything after the last backward pass, which left `buckets` in flight."""
    grid, trained = shapes.grid, Trained(job, shapes)
    emit = root.under("reduce")
    replicated = trained.replicated_elements + LOSS_ELEMENTS
    tied = trained.tied
    for axis in PARTIAL_AXES:
        if grid.size(axis) > 1 and (partial := trained.partial_over(axis)):
            emit.collective("all_reduce", axis, partial * FP32_BYTES, f"partial/all_reduce_{axis}")
    if grid.z > 1:
        emit.collective("all_reduce", "z_scatter", replicated * FP32_BYTES, "replicated/all_reduce_z")
    if tied:
        moved = (3 * shapes.head.shard_elements + shapes.token_elements) * FP32_BYTES
        emit.under("tied").compute("add", Memory(float(moved), kernels=2, work="accumulate"))
    elements = trained.elements + LOSS_ELEMENTS
    sharded = job.data_reduction.sharded and grid.data > 1
    # where states are sharded every rank wants the loss, not only the one whose part it falls into
    if sharded and job.gathers_ahead:
        elements = own_elements(job, shapes)
        late = [emit.start("all_reduce", "data", SCALAR_BYTES, "loss/all_reduce_data")]
        _rest(root, job, shapes, buckets, late)
    elif sharded:
        elements = -(-elements // grid.data)  # of the padded buffer
        emit.collective("all_reduce", "data", SCALAR_BYTES, "loss/all_reduce_data")
        emit.collective("reduce_scatter", "data", elements * grid.data * FP32_BYTES)
        emit.compute("keep", Memory(2.0 * elements * FP32_BYTES, work="copy"))
    elif grid.data > 1 and job.data_reduction.beside_backward:
        _rest(root, job, shapes, buckets, [])
    elif grid.data > 1:
        emit.collective("all_reduce", "data", elements * FP32_BYTES)
    _update(root.under("optimizer", phase="optimizer"), job, shapes, elements, sharded=sharded)


def _rest(root: Emitter, job: FourDJob, shapes: Shapes, buckets: list[str], started: list[str]) -> None:
    """Send what no bucket carried, and wait for everything: `buckets`, and what else has `started` by now."""
    emit, trained = root.under("reduce"), Trained(job, shapes)
    kind, replicated = _over_data(job, trained.replicated_elements + LOSS_ELEMENTS)
    last = emit.start(kind, "data", replicated * FP32_BYTES, f"{REPLICATED}/{kind}_data")
    _, head = _over_data(job, shapes.head.shard_elements)
    late = [emit.start(kind, "data", head * FP32_BYTES, f"{HEAD}/{kind}_data")] if trained.tied else []
    backward = root.under("bwd", phase="bwd")  # a wait belongs to the phase of its start
    for bucket in buckets:
        backward.wait(bucket)
    for each in (*started, *late, last):
        emit.wait(each)


def _update(emit: Emitter, job: FourDJob, shapes: Shapes, elements: int, *, sharded: bool) -> None:
    """Norm, clipping and AdamW on the elements that are this rank's."""
    e = job.element_bytes
    _norm(emit.under("clip"), shapes, elements, sharded=sharded)
    if job.clip_gradients:
        emit.compute("clip/scale", work.gradient_scale(elements))
    away = moved_weights(job, shapes)
    if (update := held_update(job, job.offload, rounds=e < FP32_BYTES, away=away)) is not None:
        update.emit(emit, update_spans(job, shapes, elements, sharded=sharded))
    else:
        _adamw(emit, e, elements)
        if job.lora is None:  # else nothing that lies beyond the device has changed
            leave_updated(emit, job, shapes)
    tied = Trained(job, shapes).tied
    if sharded and not job.gathers_ahead:
        emit.collective("all_gather", "data", elements * shapes.grid.data * e)
    elif sharded and tied:  # the table that follows the head is the first thing that the next step reads
        _, head = _over_data(job, shapes.head.shard_elements)
        emit.collective("all_gather", "data", head * e, f"{HEAD}/all_gather_data")
    if tied:
        _tie(emit.under("tied"), job, shapes)


def update_spans(job: FourDJob, shapes: Shapes, elements: int, *, sharded: bool) -> Sequence[tuple[int, int]]:
    """Return the places, among a rank's elements, of what is updated in sub-groups of its own.

    Of replicas that share states each has a part that lies elsewhere: where weight decay ends in it is left out.
    """
    if not sharded:
        return Trained(job, shapes).spans
    if not job.gathers_ahead:
        return [(0, elements)]
    return list(pairwise(accumulate((bucket.own for bucket in buckets_of(job, shapes)), initial=0)))


def _adamw(emit: Emitter, e: int, elements: int) -> None:
    """Update everything at once, on the device."""
    # in reduced precision the weight that is computed with is a copy, made anew
    adam = ADAM_BYTES_PER_ELEMENT + (FP32_BYTES + e if e < FP32_BYTES else 0)
    emit.compute("adamw", Memory(float(elements * adam), kernels=8, work="adamw"))


def _tie(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Gather the head's new weight over z and y, and copy it into the table of tokens."""
    e, grid, head = job.element_bytes, shapes.grid, shapes.head
    if grid.z > 1:
        emit.collective("all_gather", "z_gather", head.gathered_elements * e)
    if grid.y > 1:
        emit.collective("all_gather", "y", grid.y * head.n_local * head.k_local * e)
    copied = 2.0 * shapes.token_elements * e
    if e < FP32_BYTES:  # into the master weights too: of replicas that share them each has its part, on average
        parts = grid.data if job.data_reduction.sharded else 1
        copied += shapes.token_elements * (e + FP32_BYTES) / parts
    emit.compute("copy", Memory(copied, kernels=1 + (e < FP32_BYTES), work="copy"))


def _norm(emit: Emitter, shapes: Shapes, elements: int, *, sharded: bool) -> None:
    """Gradient norm: one scalar all-reduce over every axis a parameter is sharded on."""
    grid = shapes.grid
    emit.compute("norm", work.gradient_norm(elements))
    over: list[tuple[int, str]] = [(grid.x, "x"), (grid.y, "y"), (grid.z, "z_scatter")]
    if sharded:
        over.append((grid.data, "data"))
    for size, communicator in over:
        if size > 1:
            emit.collective("all_reduce", communicator, SCALAR_BYTES)
