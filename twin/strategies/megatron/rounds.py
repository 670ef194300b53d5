"""Where what a rank of a pipeline does comes again and again, with later micro-batches.

Between the first pass of each kind through each chunk and the last one, a schedule is a round of passes that comes
many times: of 1F1B one forward and one backward pass, of interleaved 1F1B those of a group of micro-batches through all
chunks. A long step is written as one of them, and how often it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from twin.strategies.megatron.orders import Action


Unit = tuple[Action, ...]
"""What is written at once: an action, or a forward and a backward pass."""


@dataclass(frozen=True)
class Round:
    """Units that come several times in a row, each time with later micro-batches."""

    first: int
    length: int
    count: int
    """How often they come; they are followed by the begin of at least one more round."""
    by: int
    """How much later the micro-batches are each time."""


def round_of(units: Sequence[Unit], by: int) -> Round | None:
    """Find what comes again with micro-batches that are so much later; None if nothing does.

    First and last passes of a kind and chunk are left out: more happens beside them.

    >>> round_of([(Action(kind, micro + (kind == "F")),) for micro in range(6) for kind in "FB"], by=1)
    Round(first=2, length=2, count=3, by=1)
    """
    actions = list(chain.from_iterable(units))
    if len(actions) < MIN_ACTIONS:
        return None
    kinds, micros, chunks, pairs = (np.array(column) for column in zip(*actions, strict=True))
    kind_numbers = np.unique(kinds, return_inverse=True)[1]
    shape = (chunks * len(PASSES) + kind_numbers) * 2 + pairs
    begin = int(np.unique(shape, return_index=True)[1].max()) + 1
    end = len(actions) - 1 - int(np.unique(shape[::-1], return_index=True)[1].max())
    starts = np.cumsum([0, *map(len, units)])
    first = int(np.searchsorted(starts, begin))
    shape, micros, starts = shape[starts[first] : end], micros[starts[first] : end], starts[first:] - starts[first]
    again = np.flatnonzero((shape == shape[:1]) & (micros == micros[:1] + by))
    if not len(again):
        return None
    length = int(again[0])
    same = (shape[length:] == shape[:-length]) & (micros[length:] == micros[:-length] + by)
    count = int(np.argmin(np.append(same, False))) // length
    of_units = int(np.searchsorted(starts, length))
    if count < 2 or starts[of_units] != length:
        return None
    return Round(first, of_units, count, by)


MIN_ACTIONS = 8
"""Fewer are written as they are."""
PASSES = ("B", "F", "I", "W")
