"""Gradients after the backward pass: summed over z where parameters are replicated, and over data.

* one_bucket: all of it after the backward pass, as published.
* overlapped: buckets of finished weight gradients start while the last micro-step's backward runs.
* sharded: each data rank keeps only its part of the sum.

Everywhere sums, nowhere means: the loss is scaled once by the count of all targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.parallel.collectives import Handle
from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.tied import add_table
from twin.schedule.kernels import Memory
from twin.strategies.four_d.reduction import PARTIAL_AXES

REDUCE = Place("")


@dataclass
class Reduction:
    """Reduces the gradients of one step."""

    context: FourDContext
    bounds: Mapping[int | None, int]
    """Where, in the store's flat buffers, the weights of each block end, and the head's (None)."""
    last_micro_step: bool = False
    _ready: list[int | None] = field(default_factory=list)
    _sent: int = 0
    """Reduce-scatters that the blocks in `_ready` and before have started."""
    _begin: int = 0
    _end: int = 0
    _buckets: list[Handle] = field(default_factory=list)

    @property
    def overlapped(self) -> bool:
        """Whether data all-reduces run beside the backward pass."""
        return self.context.job.data_reduction.mode == "overlapped" and self.context.grid.data > 1

    def block_done(self, layer: int | None) -> None:
        """Take note that a block's (or the head's) weight gradients are on their way."""
        if not (self.overlapped and self.last_micro_step):
            return
        self._settle()
        if layer is None and self.context.tied:
            self._begin = self._end = self.bounds[None]  # whole after the embedding's backward pass only
        else:
            self._ready.append(layer)
        self._sent = self.context.gathers.scattered

    def end_of_backward(self) -> None:
        """Send what is left, once every gradient has arrived."""
        if self.overlapped and self.last_micro_step:
            self._settle()
            self._flush()

    def _settle(self) -> None:
        """Wait for what earlier blocks started, and put it into the open bucket."""
        self.context.gathers.finish_scatters(until=self._sent)
        for layer in self._ready:
            self._end = self.bounds[layer]
        self._ready.clear()
        size = (self._end - self._begin) * self.context.store.gradient.element_size()
        if size >= self.context.job.data_reduction.bucket_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._end > self._begin:
            bucket = self.context.store.gradient[self._begin : self._end]
            self._buckets.append(
                self.context.collectives.all_reduce(Place(f"bucket{len(self._buckets)}"), "data", bucket, phase="bwd")
            )
        self._begin = self._end

    def finish(self) -> None:
        """Reduce everything that is not reduced yet; gradients are complete afterwards."""
        context, store = self.context, self.context.store
        gradient, collectives = store.gradient, context.collectives
        # the loss lies right behind the last parameter and is summed with what is replicated
        replicated = gradient[store.replicated : store.used + 1]
        for parameter in store.trained:
            if not parameter.seen:  # nothing came: what lies there is the last step's
                parameter.gradient.zero_()
        for axis in PARTIAL_AXES:
            partial = store.partial_over(axis) if context.grid.size(axis) > 1 else None
            if partial is not None:
                collectives.all_reduce(REDUCE, axis, partial, name="partial", phase="reduce").wait()
        if context.grid.z > 1:
            collectives.all_reduce(REDUCE, "z_scatter", replicated, name="replicated", phase="reduce").wait()
        tied = context.tied
        if tied:
            add_table(context)
        if context.grid.data == 1:
            return
        mode = context.job.data_reduction.mode
        if mode == "sharded":
            data = context.mesh.coordinates["data"]
            length = store.elements // context.grid.data
            # every rank wants the loss, not only the one whose part it falls into
            loss = store.loss.clone()
            collectives.all_reduce(REDUCE, "data", loss, name="loss", phase="reduce").wait()
            part = collectives.reduce_scatter(REDUCE, "data", gradient, phase="reduce").wait()
            kept = gradient[data * length : (data + 1) * length]
            context.ops.compute(
                REDUCE,
                "keep",
                lambda: kept.copy_(part),
                lambda: Memory(float(kept.nbytes + part.nbytes), work="copy"),
                phase="reduce",
            )
            store.loss.copy_(loss)
        elif mode == "overlapped":
            last = collectives.all_reduce(REDUCE, "data", replicated, name="replicated", phase="reduce")
            head = gradient[: self.bounds[None]]
            late = [collectives.all_reduce(REDUCE, "data", head, name="head", phase="reduce")] if tied else []
            for handle in (*self._buckets, *late, last):
                handle.wait()
        else:
            collectives.all_reduce(REDUCE, "data", gradient[: store.used + 1], phase="reduce").wait()
