"""Weights that replicas have updated, on their way to all of them beside the next forward pass (`sharded_overlapped`).

The twin's `updated` says what starts when, and who waits for it: a training step starts to gather every bucket over
data, and its first forward pass waits for each where it first reads it. Whatever else reads weights after a step
(evaluation, generated text) waits for all of them first. What keeps or exports weights reads the master weights, each
replica its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runtime.parallel.collectives import Collectives, Handle
from runtime.parallel.ops import Place
from runtime.weights.owned import Bucket
from runtime.weights.store import Parameter, ParameterStore
from twin.schedule.ops import Phase
from twin.strategies.four_d import buckets as layout


@dataclass
class UpdatedWeights:
    """The all-gathers over data of one rank; none, where replicas share what they have updated at the end of a step."""

    collectives: Collectives
    store: ParameterStore
    names: Sequence[str] = ()
    """Of the store's buckets, as the twin has them."""
    stale: bool = False
    """True if other replicas have updated weights that are not here yet."""
    _bucket_of: Mapping[int, str] = field(default_factory=dict)
    """Names of buckets by the identity of their parameters."""
    _flight: dict[str, Handle] = field(default_factory=dict)

    def lay_out(self, names: Sequence[str]) -> None:
        """Give names to the store's buckets, once they have a place."""
        self.names = names
        self._bucket_of = {
            id(parameter): name
            for name, bucket in self._buckets().items()
            for parameter in self.store.trained
            if bucket.begin <= parameter.start < bucket.stop
        }

    def _buckets(self) -> dict[str, Bucket]:
        return dict(zip(self.names, self.store.buckets, strict=True))

    def start(self) -> None:
        """Start to gather them in the order of first use; a tied head's are there."""
        for name in layout.in_use(self.names):
            self._flight[name] = self._start(name, "fwd")
        self.stale = False

    def need(self, parameter: Parameter) -> None:
        """Wait, if nothing has, for the weights that travel with this one."""
        if self._flight and (handle := self._flight.pop(self._bucket_of[id(parameter)], None)) is not None:
            handle.wait()

    def complete(self) -> None:
        """Bring all weights up to date; every rank must call it."""
        if self.stale:
            self.start()
            for handle in self._flight.values():
                handle.wait()
            self._flight.clear()

    def gather_head(self) -> None:
        """Gather a tied head's weights at once: the table that follows it is the first thing that is read."""
        if self.names:
            self._start(layout.HEAD, "optimizer").wait()

    def _start(self, name: str, phase: Phase) -> Handle:
        bucket, compute = self._buckets()[name], self.store.compute
        mine = compute[self.store.part_of(bucket)]
        return self.collectives.all_gather(Place(name), "data", mine, into=compute[bucket.whole], phase=phase)
