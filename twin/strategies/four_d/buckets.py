"""Buckets of gradients and weights over data, of each of which every replica has a part (`sharded_overlapped`).

A bucket is what one reduce-scatter over data carries, and one all-gather back: the weights of some blocks, whose
gradients are finished one after the other. It is padded to a multiple of the replicas, and each has an equal part of
it: master weights, moments and, once they are summed, gradients. What is replicated over z is a bucket of its own, with
the loss behind it, and so is a head to which the table of tokens is tied: both are finished after the backward pass.

Buckets lie one behind the other in the order of the backward pass, what is replicated over z last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Shapes
from twin.strategies.four_d.trained import Trained
from twin.strategies.sizes import FP32_BYTES

LOSS_ELEMENTS = 1
HEAD = "head"
REPLICATED = "replicated"
"""Names of the two buckets that are finished after the backward pass."""


@dataclass(frozen=True)
class Bucket:
    """One of them, as a rank has it."""

    name: str
    """Such as `bucket0`."""
    layers: tuple[int | None, ...]
    """Blocks, in the order of the backward pass, and the head (None), whose weights it holds."""
    own: int
    """Elements of a replica's part, padding included."""
    data: int
    """Replicas."""

    @property
    def elements(self) -> int:
        """Elements of all parts."""
        return self.own * self.data


def grouped(sizes_bytes: Sequence[float], least_bytes: float) -> list[range]:
    """Divide what comes one after the other into buckets: each ends where it is large enough, the last at the end.

    >>> grouped([3, 3, 3, 3, 3], 6)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    found: list[range] = []
    begin, filled = 0, 0.0
    for index, size in enumerate(sizes_bytes):
        filled += size
        if filled >= least_bytes or index + 1 == len(sizes_bytes):
            found.append(range(begin, index + 1))
            begin, filled = index + 1, 0.0
    return found


def layers_in_buckets(job: FourDJob) -> tuple[int | None, ...]:
    """Return whose weights travel beside the backward pass, in its order: the head (None), if nothing is tied to it."""
    head: tuple[int | None, ...] = () if job.model.tied_embeddings else (None,)
    return (*head, *reversed(range(job.model.layers)))


def buckets_of(job: FourDJob, shapes: Shapes) -> list[Bucket]:
    """Return all buckets of a rank, in the order in which they lie."""
    data, trained, layers = job.concrete_grid.data, Trained(job, shapes), layers_in_buckets(job)

    def bucket(name: str, layers: tuple[int | None, ...], elements: int) -> Bucket:
        return Bucket(name, layers, -(-elements // data), data)

    blocks = [shapes.block_shard_elements] * job.model.layers
    sizes = blocks if trained.tied else [shapes.head.shard_elements, *blocks]
    groups = grouped([size * FP32_BYTES for size in sizes], job.data_reduction.bucket_bytes)
    head = [bucket(HEAD, (None,), shapes.head.shard_elements)] if trained.tied else []
    beside = [
        bucket(f"bucket{number}", tuple(layers[at] for at in group), sum(sizes[at] for at in group))
        for number, group in enumerate(groups)
    ]
    return [*head, *beside, bucket(REPLICATED, (), trained.replicated_elements + LOSS_ELEMENTS)]


def in_use(names: Sequence[str]) -> list[str]:
    """Put names of buckets into the order of first use; without that of a tied head, which a step finds up to date.

    >>> in_use(["bucket0", "bucket1", "replicated"])
    ['replicated', 'bucket1', 'bucket0']
    """
    return [name for name in reversed(names) if name != HEAD]


def own_elements(job: FourDJob, shapes: Shapes) -> int:
    """Count the elements that a rank updates, padding and the loss included."""
    return sum(bucket.own for bucket in buckets_of(job, shapes))
