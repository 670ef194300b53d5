"""Several conversations in one sequence: first fit, in the order in which they come.

Each goes into the first open sequence that has room for it, and begins a new one where none has. At most `MAX_OPEN`
are open: then the one opened first is closed as it is, and padded. So equal conversations in an equal order are packed
alike, and what is in memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_OPEN = 256
"""Open sequences. With more of them the last few tokens of a sequence find a conversation sooner; each costs memory."""


@dataclass(frozen=True)
class Packed:
    """One sequence: arrays of its length."""

    tokens: NDArray[Any]
    counts: NDArray[np.bool_]
    """Which tokens count as targets; the first of a conversation never does, for nothing comes before it."""
    begins: NDArray[np.bool_]
    """Where a conversation begins, or the padding."""
    padding: int
    """Tokens at the end that belong to no conversation."""


@dataclass
class _Open:
    tokens: list[NDArray[Any]] = field(default_factory=list)
    counts: list[NDArray[np.bool_]] = field(default_factory=list)


class Packer:
    """Packs conversations into sequences of `sequence` tokens."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self._open: list[_Open] = []
        self._room = np.zeros(0, np.int64)

    def add(self, tokens: NDArray[Any], counts: NDArray[np.bool_]) -> Iterator[Packed]:
        """Take a conversation no longer than a sequence; yield sequences that are closed by that."""
        fits = np.flatnonzero(self._room >= len(tokens))
        if not len(fits):
            if len(self._open) == MAX_OPEN:
                yield self._close(0)
            self._open.append(_Open())
            self._room = np.append(self._room, self.sequence)
            fits = np.array([len(self._open) - 1])
        at = int(fits[0])
        self._open[at].tokens.append(tokens)
        self._open[at].counts.append(counts)
        self._room[at] -= len(tokens)
        if not self._room[at]:
            yield self._close(at)

    def rest(self) -> Iterator[Packed]:
        """Close all that are open."""
        while self._open:
            yield self._close(0)

    def _close(self, at: int) -> Packed:
        closed, room = self._open.pop(at), int(self._room[at])
        self._room = np.delete(self._room, at)
        ends = np.cumsum([len(tokens) for tokens in closed.tokens])
        begins = np.zeros(self.sequence, np.bool_)
        begins[[0, *ends[ends < self.sequence]]] = True
        tokens, counts = (np.pad(np.concatenate(parts), (0, room)) for parts in (closed.tokens, closed.counts))
        return Packed(tokens, counts & ~begins, begins, room)
