"""Attention over a sequence whose parts lie in order, where ranks with little to do help those with much.

DistFlashAttn (arXiv 2310.03294, github RulinShao/LightSeq): rank r has part r of c, and under the causal mask r + 1
blocks of (s/c)² scores to work on. In step t of c/2 rank r ≥ t takes keys and values of rank r − t to its own queries;
a rank r < t is done with its own, gets the queries of rank c + r − t and sends back what comes of them. All is in step
with the ranks that are never done: half a block of their own part and c/2 whole ones, of which the last, where c is
even, finds every second rank without work. Blocks move beside those worked on before; what comes of the last does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Attention, Memory
from twin.strategies.sizes import FP32_BYTES


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bytes that move for one block, and when; ranks that share a sequence."""

    ranks: int
    taken: float
    """Keys and values."""
    given: float
    """What a helper needs of those it helps."""
    found: float
    """What a helper sends back."""
    returned: float
    """What a rank sends back to those whose keys it took."""

    @property
    def steps(self) -> int:
        """Steps after the first, which is on the own part."""
        return self.ranks // 2

    def helps(self, step: int) -> bool:
        """Whether there is work for helpers: of even c the last step's pairs have all a rank already."""
        return 1 <= step <= self.steps and 2 * step != self.ranks

    def busiest(self) -> tuple[float, ...]:
        """Return what the busiest rank sends or receives in each step, and behind the last one."""
        return tuple(self._busiest(step) for step in range(self.steps + 2))

    def _busiest(self, step: int) -> float:
        """For the step behind it, and of what came of the one before."""
        after, before, most = step + 1, step - 1, 0.0
        for rank in range(self.ranks):
            received = sent = 0.0
            if after <= self.steps:
                helper = self.given if self.helps(after) else 0.0
                received += self.taken if rank >= after else helper
                sent += self.taken if rank + after < self.ranks else helper
            if 1 <= before <= self.steps:
                helper = self.found if self.helps(before) else 0.0
                sent += self.returned if rank >= before else helper
                received += self.returned if rank + before < self.ranks else helper
            most = max(most, sent, received)
        return most


def exchange(ranks: int, keys_and_values: float, kernel: Attention) -> Exchange:
    """Say what moves between so many ranks; `keys_and_values` in bytes and `kernel` of one of them."""
    rows = float(FP32_BYTES * kernel.sequences * kernel.sequence_length * kernel.heads)
    queries = rows / FP32_BYTES * kernel.head_size * kernel.element_bytes
    if kernel.backward:  # queries, the output and its gradient, and the sum of each row
        return Exchange(ranks, keys_and_values, 3 * queries + rows, queries, keys_and_values)
    # a result comes with the maximum and the sum of each row
    return Exchange(ranks, keys_and_values, queries, queries + 2 * rows, 0.0)


@lru_cache(maxsize=64)
def _busiest(move: Exchange) -> tuple[float, ...]:
    """Ask once for all blocks of a pass: it looks at every rank in every step."""
    return move.busiest()


def balanced(emit: Emitter, communicator: str, ranks: int, keys_and_values: float, kernel: Attention) -> None:
    """Write attention of one rank's part over all before it; `keys_and_values` in bytes, `kernel` over the own part."""
    move = exchange(ranks, keys_and_values, kernel)
    queries = move.found if kernel.backward else move.given
    # a result is added to another: read both, write one; of gradients those of keys
    merge = Memory(3 * keys_and_values if kernel.backward else 2 * move.found + queries, work="merge")
    if kernel.backward:
        emit.compute("order", Memory(2 * (3 * queries + keys_and_values), kernels=5, work="copy"))
    *sizes, left = _busiest(move)
    for step, size in enumerate(sizes):
        moving = emit.start("shift", communicator, size, f"step{step}") if size else ""
        if not kernel.backward and kernel.kv_heads is not None:  # heads of keys and values as often as queries'
            emit.compute(f"repeat{step}", Memory(keys_and_values + 2 * queries, kernels=2, work="copy"))
        # a whole block is what two causal ones are
        emit.compute(f"attention{step}", kernel if not step else replace(kernel, sequences=2 * kernel.sequences))
        if step and kernel.backward:
            emit.compute(f"sum{step}", Memory(3 * (queries + keys_and_values), kernels=3, work="sum"))
        if moving:
            emit.wait(moving)
        if step > 1:
            emit.compute(f"merge{step}", merge)
    if left:
        emit.collective("shift", communicator, left, f"step{move.steps + 1}")
        emit.compute(f"merge{move.steps + 1}", merge)
