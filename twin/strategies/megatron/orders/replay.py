"""When each action of a pipeline starts and ends, by dependencies alone (arXiv 2401.10241, section 4).

* A forward pass waits for that of the stage before.
* A backward pass, or the input gradients, waits for that of the stage after, and for its own forward pass.
* Weight gradients wait for input gradients.
* A rank does one action at a time, in its order.

What comes from another rank takes a hop more. Sends cost a rank nothing and wait for nobody: with actions that take as
long, no machine is faster. The work of a replay is linear in the number of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from twin.strategies.megatron.orders.action import Action, Kind

Key = tuple[bool, int, int]
"""A forward pass or not, its stage and micro-batch."""
MAX_SHOWN = 4
"""Ranks of a deadlock that are named."""


@dataclass(frozen=True)
class Replay:
    """Times in seconds from the start of the step."""

    starts: tuple[tuple[float, ...], ...]
    """Of each action of each rank; those of a pair start and end together."""
    ends: tuple[tuple[float, ...], ...]
    busy: tuple[float, ...]
    """Seconds that each rank computes."""

    @property
    def seconds(self) -> float:
        """Return the time to the last end of any rank."""
        return max((ends[-1] for ends in self.ends if ends), default=0.0)

    @property
    def cost(self) -> float:
        """Return the longest time, of any rank, from its first start to its last end: what steps in a row cost."""
        spans = (ends[-1] - starts[0] for starts, ends in zip(self.starts, self.ends, strict=True) if ends)
        return max(spans, default=0.0)

    @property
    def bubble_rate(self) -> float:
        """Return the share of `cost` in which the busiest rank waits, from 0 to 1.

        With equal stages it is the paper's (cost − M·(F+B+W)) / cost.
        """
        return 1.0 - max(self.busy) / self.cost if self.cost else 0.0


def replay(
    orders: Sequence[Sequence[Action]],
    stage_of_chunk: Callable[[int, int], int],
    seconds: Callable[[Kind, int], float],
    hop_seconds: float = 0.0,
    pair_seconds: Callable[[int, int], float] | None = None,
) -> Replay:
    """Run the orders of all ranks.

    `stage_of_chunk(rank, chunk)` numbers the stages of the model, `seconds(kind, stage)` says how long an action takes
    and `pair_seconds(stage, stage)` how long a forward and a backward pass take together, by default as long as one
    after the other. Raises ValueError naming the actions if ranks wait for each other, and if one is there twice.

    >>> from twin.strategies.megatron.orders.schedules import order
    >>> orders = [order("gpipe", rank, ranks=2, micro_steps=3) for rank in range(2)]
    >>> replay(orders, lambda rank, chunk: rank, lambda kind, stage: 1.0).cost
    8.0
    """
    clock = _Clock(orders, stage_of_chunk, seconds, hop_seconds, pair_seconds)
    ready = list(range(len(orders)))
    while ready:
        ready += clock.run(ready.pop())
    clock.check_all_done()
    return Replay(tuple(map(tuple, clock.starts)), tuple(map(tuple, clock.ends)), tuple(clock.busy))


class _Clock:
    """Ranks that stand before an action each, and what is done."""

    def __init__(
        self,
        orders: Sequence[Sequence[Action]],
        stage_of_chunk: Callable[[int, int], int],
        seconds: Callable[[Kind, int], float],
        hop_seconds: float,
        pair_seconds: Callable[[int, int], float] | None,
    ) -> None:
        self.orders = orders
        self.starts: list[list[float]] = [[] for _ in orders]
        self.ends: list[list[float]] = [[] for _ in orders]
        self.busy = [0.0 for _ in orders]
        self._hop_seconds = hop_seconds
        self._seconds = cache(seconds)
        self._pair_seconds = pair_seconds
        self._stages = [
            {chunk: stage_of_chunk(rank, chunk) for chunk in {action.chunk for action in order}}
            for rank, order in enumerate(orders)
        ]
        self._last_stage = max((stage for stages in self._stages for stage in stages.values()), default=0)
        self._done: dict[Key, tuple[float, int]] = {}
        self._waiting: dict[Key, list[int]] = {}

    def run(self, rank: int) -> list[int]:
        """Let a rank go on until it must wait; returns the ranks that waited for what it has done."""
        awake: list[int] = []
        starts, ends = self.starts[rank], self.ends[rank]
        while actions := self._next(rank):
            start = ends[-1] if ends else 0.0
            for key in self._needs(rank, actions):
                if key not in self._done:
                    self._waiting.setdefault(key, []).append(rank)
                    return awake
                end, by = self._done[key]
                start = max(start, end if by == rank else end + self._hop_seconds)
            seconds = self._duration(rank, actions)
            self.busy[rank] += seconds
            for action in actions:
                starts.append(start)
                ends.append(start + seconds)
                awake += self._finish(rank, action, start + seconds)
        return awake

    def check_all_done(self) -> None:
        """Raise ValueError, with what each rank waits for, where some actions are left."""
        stuck = [
            f"rank {rank} stands before {actions[0]}, which waits for {_words(self._missing(rank, actions)[0])}"
            for rank in range(len(self.orders))
            if (actions := self._next(rank))
        ]
        if stuck:
            more = f"; and {len(stuck) - MAX_SHOWN} more" if len(stuck) > MAX_SHOWN else ""
            raise ValueError(f"the order deadlocks: {'; '.join(stuck[:MAX_SHOWN])}{more}")

    def _next(self, rank: int) -> Sequence[Action]:
        """Return the next action of a rank, or the next two if they are overlapped; none after the last."""
        order, at = self.orders[rank], len(self.ends[rank])
        return order[at : at + 2] if at < len(order) and order[at].with_next else order[at : at + 1]

    def _needs(self, rank: int, actions: Sequence[Action]) -> list[Key]:
        """Return what must be done before these actions start."""
        keys: list[Key] = []
        for action in actions:
            stage, micro = self._stages[rank][action.chunk], action.micro
            if action.kind == "F":
                if stage > 0:
                    keys.append((True, stage - 1, micro))
            elif action.kind == "W":
                keys.append((False, stage, micro))
            else:
                keys.append((True, stage, micro))
                if stage < self._last_stage:
                    keys.append((False, stage + 1, micro))
        return keys

    def _missing(self, rank: int, actions: Sequence[Action]) -> list[Key]:
        return [key for key in self._needs(rank, actions) if key not in self._done]

    def _duration(self, rank: int, actions: Sequence[Action]) -> float:
        stages = [self._stages[rank][action.chunk] for action in actions]
        if len(actions) == 2 and self._pair_seconds is not None:
            return self._pair_seconds(stages[0], stages[1])
        return sum(self._seconds(action.kind, stage) for action, stage in zip(actions, stages, strict=True))

    def _finish(self, rank: int, action: Action, end: float) -> list[int]:
        """Note that an action is done; returns who waited for it."""
        if action.kind == "W":  # nobody waits for it
            return []
        key = (action.kind == "F", self._stages[rank][action.chunk], action.micro)
        if key in self._done:
            raise ValueError(f"{_words(key)} is done twice, on rank {self._done[key][1]} and on rank {rank}")
        self._done[key] = end, rank
        return self._waiting.pop(key, [])


def _words(key: Key) -> str:
    forward, stage, micro = key
    return f"the {'forward' if forward else 'backward'} pass of micro-batch {micro} in stage {stage}"
