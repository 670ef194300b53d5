"""DeepSpeed's clock: 1F1B in lock-step ticks, with sends and receives where they block.

In a step of 2·(M + P − 1) ticks, of M micro-batches over P ranks, a rank passes forward in ticks of its own parity
and backward in the others (DeepSpeed's `runtime/pipe/schedule.py`, `TrainSchedule`). What a tick has computed is sent
in the next one only: a backward tick sends the activations of the forward tick before it and vice versa.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from twin.strategies.megatron.orders.action import Action

InstructionKind = Literal[
    "SendGrad", "RecvActivation", "LoadMicroBatch", "ForwardPass", "RecvGrad", "SendActivation", "BackwardPass"
]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of DeepSpeed's instructions; those that send and receive block until the other side does its part."""

    kind: InstructionKind
    micro: int
    """Number of the micro-batch in the step."""


def ticks(rank: int, ranks: int, micro_steps: int) -> tuple[tuple[Instruction, ...], ...]:
    """Return what a rank does in each tick, in order; nothing in some.

    What ends a step (`ReduceTiedGrads`, `ReduceGrads`, `OptimizerStep`) is of no micro-batch and left out.
    """
    total = 2 * (micro_steps + ranks - 1)
    found, previous = [], -1
    for tick in range(total):
        micro, forward = _micro_at(tick, rank, ranks)
        here = micro if 0 <= micro < micro_steps else None
        before = previous if 0 <= previous < micro_steps else None
        make = _forward_tick if forward else _backward_tick
        found.append(tuple(make(here, before, rank, ranks)))
        previous = micro
    return tuple(found)


def compute_order(rank: int, ranks: int, micro_steps: int) -> tuple[Action, ...]:
    """Return the passes of the clock in order."""
    order = []
    for instruction in (one for tick in ticks(rank, ranks, micro_steps) for one in tick):
        if instruction.kind == "ForwardPass":
            order.append(Action("F", instruction.micro))
        elif instruction.kind == "BackwardPass":
            order.append(Action("B", instruction.micro))
    return tuple(order)


def _micro_at(tick: int, rank: int, ranks: int) -> tuple[int, bool]:
    """Return which micro-batch a tick is for, maybe none that there is, and whether it is a forward tick."""
    if tick % 2 == rank % 2:
        return tick // 2 - rank // 2, True
    if tick % 2 == 0:
        return tick // 2 - ranks + (rank + 1) // 2, False
    return tick // 2 - ranks + 1 + rank // 2, False


def _forward_tick(here: int | None, before: int | None, rank: int, ranks: int) -> Iterator[Instruction]:
    if before is not None and rank > 0:
        yield Instruction("SendGrad", before)
    if here is None:
        return
    if rank > 0:
        yield Instruction("RecvActivation", here)
    if rank in {0, ranks - 1}:  # inputs on the first, labels on the last
        yield Instruction("LoadMicroBatch", here)
    yield Instruction("ForwardPass", here)


def _backward_tick(here: int | None, before: int | None, rank: int, ranks: int) -> Iterator[Instruction]:
    if here is not None and rank < ranks - 1:
        yield Instruction("RecvGrad", here)
    if before is not None and rank < ranks - 1:
        yield Instruction("SendActivation", before)
    if here is not None:
        yield Instruction("BackwardPass", here)
