"""Where what a rank of a pipeline does comes again and again, with later micro-batches.

Between the first pass of each kind through each chunk and the last one, a schedule is a round of passes that comes
many times: of 1F1B a forward and a backward pass, of interleaved 1F1B those of a group of micro-batches through all
chunks. Within such a round, and before and after, the same pass or pair of passes comes with one micro-batch after the
other. A long step is written as a few of them and how often each comes.

What is written for a unit depends on the units before and behind it, by the messages between them. So what comes again
is what has the same neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from twin.schedule.stretch import around
from twin.strategies.megatron.orders import Action

Unit = tuple[Action, ...]
"""What is written at once: an action, or a forward and a backward pass."""


@dataclass(frozen=True)
class Round:
    """Units that come several times in a row, each time with later micro-batches."""

    first: int
    length: int
    count: int
    by: int
    """How much later the micro-batches are each time."""

    @property
    def stop(self) -> int:
        """The unit behind all of them."""
        return self.first + self.length * self.count


class Pattern:
    """Units as numbers: equal ones with later micro-batches are found by comparing columns.

    >>> units = [(Action(kind, micro + (kind == "F")),) for micro in range(9) for kind in "FB"]
    >>> Pattern(units).round(by=1)
    Round(first=3, length=2, count=5, by=1)
    >>> Pattern([(Action("F", micro),) for micro in range(9)]).runs(0, 9)
    [Round(first=2, length=1, count=5, by=1)]
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        sizes = np.array([len(unit) for unit in units])
        kinds, micro, chunk, _ = zip(*chain.from_iterable(units), strict=True)
        numbers = {kind: number for number, kind in enumerate(KINDS)}
        micros = np.array(micro)
        shape = np.array(chunk) * len(KINDS) + np.array(list(map(numbers.__getitem__, kinds)))
        ends = np.concatenate(
            [np.unique(shape, return_index=True)[1], len(shape) - 1 - np.unique(shape[::-1], return_index=True)[1]]
        )
        first = np.cumsum(sizes) - sizes
        last = first + sizes - 1
        self._columns = (sizes, shape[first], shape[last], micros[last] - micros[first])
        self._micro = micros[first]
        self._special = np.zeros(len(units), dtype=bool)
        """First and last passes of a kind through a chunk: more happens beside them."""
        self._special[np.searchsorted(last, ends)] = True

    def _same(self, begin: int, end: int, length: int, by: int) -> NDArray[np.bool_]:
        """Say which units come again so much later, and nothing more happens beside them either time."""
        one, other = slice(begin, end - length), slice(begin + length, end)
        same: NDArray[np.bool_] = ~(self._special[one] | self._special[other]) & (
            self._micro[other] - self._micro[one] == by
        )
        for column in self._columns:
            same &= column[one] == column[other]
        return same

    def round(self, by: int) -> Round | None:
        """Find what comes again with micro-batches that are so much later, behind the first units of all shapes."""
        middle = len(self._micro) // 2
        candidates = np.flatnonzero(self._micro[middle:] == self._micro[middle] + by) + middle
        for other in candidates.tolist():
            if all(column[middle] == column[other] for column in self._columns):
                break
        else:
            return None
        length = other - middle
        same = self._same(0, len(self._micro), length, by)
        begin, end = around(same, middle)
        count = (end - begin - 1) // length  # the unit at `begin` is a neighbour
        return Round(begin + 1, length, count, by) if count > 1 else None

    def runs(self, begin: int, end: int) -> list[Round]:
        """Find single units that come with one micro-batch after the other, between two units."""
        same = self._same(begin, end, 1, 1)
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
        found = []
        for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - first > MIN_RUN:  # those from `first` to `stop`, this one too, are alike; the ends are neighbours
                found.append(Round(begin + first + 1, 1, stop - first - 1, 1))
        return found


KINDS = ("B", "F", "I", "W")
MIN_RUN = 3
"""Shorter ones are written as they are."""
