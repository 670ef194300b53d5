"""GPipe, 1F1B and interleaved 1F1B: some forward passes, then one forward and one backward at a time, then the rest.

With P ranks, M micro-batches and v chunks per rank, equal stages and free communication, a step takes by so much more
than its compute (arXiv 1811.06965, 2104.04473):

    GPipe, 1F1B    (P−1)/M
    interleaved    (P−1)/(v·M)

What differs between the first two is memory: GPipe holds M micro-batches, rank r of 1F1B holds min(P−r, M).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from twin.strategies.megatron.orders.action import Action


def gpipe(micro_steps: int) -> tuple[Action, ...]:
    """Order all forward passes before all backward passes, the same on every rank (PyTorch's `ScheduleGPipe`)."""
    return one_by_one(*_passes(micro_steps, 1, micro_steps), warmup=micro_steps)


def one_forward_one_backward(rank: int, ranks: int, micro_steps: int) -> tuple[Action, ...]:
    """Order 1F1B (Megatron's `forward_backward_pipelining_without_interleaving`)."""
    return one_by_one(*_passes(micro_steps, 1, micro_steps), warmup=ranks - rank - 1)


def interleaved(rank: int, ranks: int, micro_steps: int, chunks: int, group: int) -> tuple[Action, ...]:
    """Order interleaved 1F1B (Megatron's `forward_backward_pipelining_with_interleaving`).

    Groups of `group` micro-batches, the last of what remains, go through the chunks one after another; backward
    through the last chunk first. A rank holds one chunk input more than it has forward passes in warm-up.
    """
    return one_by_one(*_passes(micro_steps, chunks, group), warmup=2 * (ranks - rank - 1) + (chunks - 1) * group)


def one_by_one(forward: Sequence[Action], backward: Sequence[Action], warmup: int) -> tuple[Action, ...]:
    """Order so many forward passes, then one forward and one backward at a time, then the backward passes left."""
    warmup = min(warmup, len(forward))
    steady = zip(forward[warmup:], backward, strict=False)
    return (*forward[:warmup], *chain.from_iterable(steady), *backward[len(forward) - warmup :])


@lru_cache(maxsize=8)
def _passes(micro_steps: int, chunks: int, group: int) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    """Return forward and backward passes in their order, the same on all ranks: Megatron's schedule table."""
    table = [
        (micro, chunk)
        for first in range(0, micro_steps, group)
        for chunk in range(chunks)
        for micro in range(first, min(first + group, micro_steps))
    ]
    return (
        tuple([Action("F", micro, chunk) for micro, chunk in table]),
        tuple([Action("B", micro, chunks - 1 - chunk) for micro, chunk in table]),
    )
