"""Gradients after the backward pass: summed over z where parameters are replicated, and over data.

* one_bucket: all of it after the backward pass, as published.
* overlapped: buckets of finished weight gradients start while the last micro-step's backward runs.
* sharded: each data rank keeps only its part of the sum.
* sharded_overlapped: of every bucket its part, whose sum comes into its place.

Everywhere sums, nowhere means: the loss is scaled once by the count of all targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.parallel.collectives import Handle
from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.tied import add_table
from runtime.weights.owned import Bucket
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase
from twin.strategies.four_d.buckets import HEAD, REPLICATED
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
        """Whether data all-reduces, or reduce-scatters, run beside the backward pass."""
        return self.context.job.data_reduction.beside_backward and self.context.grid.data > 1

    def block_done(self, layer: int | None) -> None:
        """Take note that a block's (or the head's) weight gradients are on their way."""
        if not (self.overlapped and self.last_micro_step):
            return
        self._settle()
        if layer is None and self.context.tied:
            self._begin = self._end = self._behind(self.bounds[None])  # whole after the embedding's backward pass only
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
            self._buckets.append(self._send(Place(f"bucket{len(self._buckets)}"), self._begin, self._end, "bwd"))
        self._begin = self._end = self._behind(self._end)

    def _send(self, place: Place, begin: int, end: int, phase: Phase) -> Handle:
        """Sum a bucket of gradients over data: to every replica, or its part of the bucket to each."""
        context, gradient = self.context, self.context.store.gradient
        if not context.job.gathers_ahead:
            return context.collectives.all_reduce(place, "data", gradient[begin:end], phase=phase)
        bucket = self._bucket_at(begin)
        part = gradient[context.store.part_of(bucket)]
        return context.collectives.reduce_scatter(place, "data", gradient[bucket.whole], into=part, phase=phase)

    def _behind(self, end: int) -> int:
        """Return where the next bucket begins behind one that ends there: behind its padding, if it has owners."""
        return self._bucket_at(end - 1).stop if self.context.job.gathers_ahead and end else end

    def _bucket_at(self, element: int) -> Bucket:
        """Return the store's bucket that holds an element."""
        return next(bucket for bucket in self.context.store.buckets if bucket.begin <= element < bucket.stop)

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
        elif self.overlapped:
            self._finish_buckets()
        else:
            collectives.all_reduce(REDUCE, "data", gradient[: store.used + 1], phase="reduce").wait()

    def _finish_buckets(self) -> None:
        """Send what no bucket carries yet, and wait for everything."""
        store = self.context.store
        started: list[Handle] = []
        shared = self.context.job.gathers_ahead
        loss = store.loss.clone() if shared else store.loss
        if shared:  # every rank wants the loss, not only the one whose part it falls into
            started.append(self.context.collectives.all_reduce(REDUCE, "data", loss, name="loss", phase="reduce"))
        last = self._send(Place(REPLICATED), store.replicated, store.used + 1, "reduce")
        if self.context.tied:
            started.append(self._send(Place(HEAD), 0, self.bounds[None], "reduce"))
        for handle in (*self._buckets, *started, last):
            handle.wait()
        if shared:
            store.loss.copy_(loss)
