"""A micro-step's sequences in two halves whose passes interleave.

While one half's all-reduce over x or y is under way the other half computes: each half issues ops up to where it would
wait for one, and then the other goes on. Weights are gathered for both when the first half needs them; gradients of
weights leave for z when the second half has added its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from twin.schedule.ops import Op, Start, Wait

TENSOR_AXES = ("y", "x")
"""Communicators over which activations and their gradients are reduced."""


def interleaved(first: Iterable[Op], second: Iterable[Op]) -> list[Op]:
    """Issue the ops of two halves by turns, each up to where it waits for a reduction over y or x."""
    turns = zip_longest(_turns(first), _turns(second), fillvalue=())
    return [op for turn in turns for ops in turn for op in ops]


def _turns(ops: Iterable[Op]) -> Iterator[tuple[Op, ...]]:
    """Cut a half's ops before each such wait."""
    reductions: set[str] = set()
    turn: list[Op] = []
    for op in ops:
        if isinstance(op, Start) and op.communicator in TENSOR_AXES:
            reductions.add(op.name)
        if isinstance(op, Wait) and op.name in reductions:
            yield tuple(turn)
            turn = []
        turn.append(op)
    yield tuple(turn)
