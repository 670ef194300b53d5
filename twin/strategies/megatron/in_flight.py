"""How many micro-batches a rank of a pipeline holds at once, and which ranks hold most."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import ge

from twin.strategies.megatron.orders import Name as Order
from twin.strategies.megatron.orders import order as actions_of
from twin.strategies.megatron.orders import stage_of

Counts = tuple[tuple[int, ...], ...]
"""At moments of which none holds as much as another: micro-batches of each chunk, and behind them how many of each wait
for their weights' gradients alone."""


@dataclass(frozen=True)
class InFlight:
    """What a rank holds when it holds many micro-batches."""

    at_backward: Counts
    """As a forward pass has ended and a backward pass, or the first half of one, begins."""
    at_weights: Counts
    """As the second half of a backward pass begins; empty where there is none."""

    def covers(self, other: InFlight) -> bool:
        """Tell if at some moment there is as much of each chunk as at every one of the other rank's."""
        pairs = ((self.at_backward, other.at_backward), (self.at_weights, other.at_weights))
        return all(any(_covers(many, few) for many in ours) for ours, theirs in pairs for few in theirs)


@lru_cache(maxsize=4096)
def needing_most(
    order: Order, ranks: int, micro_steps: int, chunks: int, group: int | None, layers: tuple[int, ...]
) -> tuple[int, ...]:
    """Return pipeline ranks one of which needs most memory, whatever is kept of a micro-batch.

    `layers` are those of each of the model's stages. Of ranks with equal stages one that never holds more of any chunk
    than another is left out.
    """
    found: dict[object, dict[InFlight, int]] = {}
    for rank in range(ranks):
        numbers = [stage_of(order, rank, chunk, ranks, chunks) for chunk in range(2 if order == "dualpipe" else chunks)]
        stages = tuple((layers[number], number == 0, number == len(layers) - 1) for number in numbers)
        held = most_held(order, rank, ranks, micro_steps, chunks, group)
        found.setdefault(stages, {}).setdefault(held, rank)
    return tuple(
        sorted(
            rank
            for alike in found.values()
            for held, rank in alike.items()
            if not any(other is not held and other.covers(held) for other in alike)
        )
    )


@lru_cache(maxsize=4096)
def most_held(order: Order, rank: int, ranks: int, micro_steps: int, chunks: int, group: int | None) -> InFlight:
    """Follow a rank through its actions: a forward pass adds a micro-batch, the end of a backward one takes it away."""
    every = 2 if order == "dualpipe" else chunks
    held, waiting = [0] * every, [0] * every
    backward: set[tuple[int, ...]] = set()
    weights: set[tuple[int, ...]] = set()
    actions = actions_of(order, rank, ranks, micro_steps, chunks, group)
    for action, following in zip(actions, (*actions[1:], None), strict=True):
        if action.kind == "I":
            backward.add((*held, *waiting))
            waiting[action.chunk] += 1
        elif action.kind == "F":
            held[action.chunk] += 1
            if following is None or following.kind != "F":  # before that there is less
                backward.add((*held, *waiting))
        else:
            if action.kind == "W":
                weights.add((*held, *waiting))
                waiting[action.chunk] -= 1
            held[action.chunk] -= 1
    return InFlight(_largest(backward), _largest(weights))


def _largest(seen: set[tuple[int, ...]]) -> Counts:
    """Leave out what holds no more than another."""
    most: list[tuple[int, ...]] = []
    for one in sorted(seen, key=sum, reverse=True):
        if not any(_covers(other, one) for other in most):
            most.append(one)
    return tuple(sorted(most))


def _covers(many: tuple[int, ...], few: tuple[int, ...]) -> bool:
    return all(map(ge, many, few))
