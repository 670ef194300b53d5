"""ZB-H1, ZB-H2 and ZB-V: weight gradients, for which nobody waits, fill what would be bubbles.

With F, I and W the times of a forward pass, input gradients and weight gradients of a rank's layers, W the shortest,
P equal ranks and free communication, the rank that takes longest waits for (arXiv 2401.10241, 2405.15362)

    1F1B     (P−1)·(F+I+W)                                      and holds P micro-batches at most
    ZB-H1    (P−1)·(F+I−W), of P micro-batches or more          P
    ZB-H2    (P−1)·(F+I−2W), of 2P−1 or more                    2P−1
    ZB-V     0, if F = I = W, of 2P−1 or more                   2P, of one of two chunks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from twin.strategies.megatron.orders.action import Action, Kind


def zb_h1(rank: int, ranks: int, micro_steps: int) -> tuple[Action, ...]:
    """Order 1F1B's forward passes and input gradients; weight gradients come `rank` micro-batches later.

    It is PyTorch's `ScheduleInterleavedZeroBubble` with one stage per rank. Every rank holds min(P, M) micro-batches.
    """
    return _delayed(ranks - rank - 1, rank, micro_steps)


def zb_h2(rank: int, ranks: int, micro_steps: int) -> tuple[Action, ...]:
    """Order twice ZB-H1's lead and delay, so that the last rank's end comes as late as its beginning.

    Every rank holds min(2P − 1, M) micro-batches.
    """
    return _delayed(2 * (ranks - rank - 1), 2 * rank, micro_steps)


def _delayed(warmup: int, delay: int, micro_steps: int) -> tuple[Action, ...]:
    """Order some forward passes, then F, I and the W of so many micro-batches ago in turn, as long as there are any."""
    warmup = min(warmup, micro_steps)
    actions = [Action("F", micro) for micro in range(warmup)]
    for micro in range(micro_steps):
        if warmup + micro < micro_steps:
            actions.append(Action("F", warmup + micro))
        actions.append(Action("I", micro))
        if micro >= delay:
            actions.append(Action("W", micro - delay))
    actions += (Action("W", micro) for micro in range(max(0, micro_steps - delay), micro_steps))
    return tuple(actions)


Step = tuple[Kind, int]
"""What is done with the next micro-batch, and in which chunk."""
F0: Step = ("F", 0)
F1: Step = ("F", 1)
I0: Step = ("I", 0)
I1: Step = ("I", 1)
W0: Step = ("W", 0)
W1: Step = ("W", 1)


def zb_v(rank: int, ranks: int, micro_steps: int) -> tuple[Action, ...]:
    """Order ZB-V: two chunks a rank, the first on the way there and the second on the way back.

    It is PyTorch's `ScheduleZBVZeroBubble`: of fewer than 2P − 1 micro-batches, the order of 2P − 1 without the rest.
    """
    todo = _Todo(max(2 * ranks - 1, micro_steps))
    todo.do([F0] * (2 * (ranks - rank) - 1))
    todo.do([F1, F0] * rank)
    todo.do([F1, I1, W1] * (ranks - rank))
    todo.do([F0, I0, W0, F1, I1, W1] * todo.left(F1))
    todo.do([I0, I1] * rank)
    todo.do([I0, W0] * (ranks - rank))
    todo.do([W1] * todo.left(W1) + [W0] * todo.left(W0))
    return tuple(action for action in todo.done if action.micro < micro_steps)


class _Todo:
    """Micro-batches of two chunks, of which each step takes the next."""

    def __init__(self, micro_steps: int) -> None:
        self.done: list[Action] = []
        self._micro_steps = micro_steps
        self._next: Counter[Step] = Counter()

    def left(self, step: Step) -> int:
        """Return the number of micro-batches that this step is still to be done for."""
        return self._micro_steps - self._next[step]

    def do(self, steps: Iterable[Step]) -> None:
        """Do these steps, without those that no micro-batch is left for."""
        for step in steps:
            if self.left(step):
                kind, chunk = step
                self.done.append(Action(kind, self._next[step], chunk))
                self._next[step] += 1
