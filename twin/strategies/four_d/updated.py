"""Weights that replicas have updated, on their way to all of them beside the next forward pass (`sharded_overlapped`).

Each replica updates its part of every bucket. All-gathers over data are started when the next step begins, in the order
of first use: what is replicated over z (the tables of tokens and positions, norms, biases), then the buckets from the
first block to the head. The forward pass of the first micro-step waits for a bucket where it first reads it: at the
lookup of tokens, at the product with a weight of it, or, where z cuts weights, at the start of their all-gather over z.

A step is modelled, and made, with the gathers of what the step before has updated at its begin. So every step is alike,
the first included, in which they bring what is there already; between two steps nothing is in flight. A table that is
tied to the head is the first thing that a step reads, and follows the head's update at the end of the step before: the
head's bucket is gathered there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.schedule.emit import Emitter
from twin.schedule.ops import Op
from twin.strategies.four_d.buckets import REPLICATED, Bucket, buckets_of, in_use
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Shapes


@dataclass
class UpdatedWeights:
    """All-gathers over data of one step."""

    job: FourDJob
    buckets: list[Bucket]
    """In the order of first use."""
    ops: list[Op] = field(default_factory=list)
    """What starts them."""
    _flight: dict[str, str] = field(default_factory=dict)
    """Full names of gathers that nothing has waited for, by their buckets."""

    @classmethod
    def of(cls, job: FourDJob, shapes: Shapes) -> UpdatedWeights:
        """Start them; there are none where replicas share what they have updated at the end of a step."""
        found = {bucket.name: bucket for bucket in buckets_of(job, shapes)} if job.gathers_ahead else {}
        updated = cls(job, [found[name] for name in in_use(list(found))])
        emit = Emitter("fwd/", "fwd", ops=updated.ops)
        for bucket in updated.buckets:
            size = bucket.elements * job.element_bytes
            updated._flight[bucket.name] = emit.start("all_gather", "data", size, f"{bucket.name}/all_gather_data")
        return updated

    def need(self, ops: list[Op], layer: int | None) -> None:
        """Wait, if nothing has, for the weights of a block, or of the head (None), that are cut over z."""
        for bucket in self.buckets:
            if layer in bucket.layers:
                self._wait(ops, bucket)

    def need_replicated(self, ops: list[Op]) -> None:
        """Wait for all that is replicated over z."""
        for bucket in self.buckets:
            if bucket.name == REPLICATED:
                self._wait(ops, bucket)

    def _wait(self, ops: list[Op], bucket: Bucket) -> None:
        if (name := self._flight.pop(bucket.name, None)) is not None:
            Emitter("", "fwd", ops=ops).wait(name)
