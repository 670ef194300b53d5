"""Samples by number, and whose they are.

Window w of a file is its tokens w·s … w·s+s: s inputs, and the same shifted by one as targets,
so that neighbours share one token. Samples are numbered 0, 1, 2, … over all steps and epochs;
step t of a run with B sequences trains on samples t·B … t·B+B-1 on any grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.data.manifest import rebuild
from runtime.data.order import shuffled
from runtime.data.tokens import TokenFile
from twin.description.grid import GridSpec
from twin.description.problems import DescriptionError, fail


class Samples(Protocol):
    """What a run trains on, by number."""

    def sequences(self, first: int, count: int) -> NDArray[np.int64]:
        """Return samples first … first+count-1: [count, sequence+1]."""
        ...

    def targets(self, first: int, count: int) -> NDArray[np.bool_] | None:
        """Return which of their targets count: [count, sequence]; None if all do."""
        ...

    def documents(self, first: int, count: int) -> NDArray[np.int64] | None:
        """Return where in its sample each input's document begins: [count, sequence]; None if each sample is one."""
        ...


class HeldOut(Samples, Protocol):
    """Samples to be looked at once."""

    @property
    def sequence(self) -> int:
        """Tokens of a sample, but for its last target."""
        ...

    @property
    def windows(self) -> int:
        """Samples until one would come for the second time."""
        ...


@dataclass(frozen=True)
class Batches:
    """The samples of a token file, for a model with `vocabulary` embeddings.

    Without `shuffle` they come in the order of the file (validation). `seed` decides the order.
    """

    tokens: TokenFile
    sequence: int
    seed: int
    vocabulary: int
    shuffle: bool = True

    @property
    def windows(self) -> int:
        """Samples in one epoch; tokens at the end that fill no window are not read."""
        return (len(self.tokens.tokens) - 1) // self.sequence

    def sequences(self, first: int, count: int) -> NDArray[np.int64]:
        """Return samples first … first+count-1: [count, sequence+1].

        Inputs are `[:, :-1]`, targets `[:, 1:]`.
        """
        windows = self.window_of(np.arange(first, first + count))
        found = np.empty((count, self.sequence + 1), dtype=np.int64)
        for row, window in zip(found, windows, strict=True):
            begin = window * self.sequence
            row[:] = self.tokens.tokens[begin : begin + self.sequence + 1]
        if (found >= self.vocabulary).any():
            raise self._damaged(windows, found)
        return found

    def targets(self, first: int, count: int) -> NDArray[np.bool_] | None:
        """Return which targets of samples first … first+count-1 count: [count, sequence]; None if all do."""
        known = self.tokens.targets
        if known is None:
            return None
        begins = self.window_of(np.arange(first, first + count)) * self.sequence + 1
        return np.stack([known[begin : begin + self.sequence] != 0 for begin in begins])

    def documents(self, first: int, count: int) -> NDArray[np.int64] | None:
        """Return where in its sample each input's document begins: [count, sequence]; None if each sample is one.

        A document begins at the separator before it, from which its first token is predicted; or where the file beside
        the tokens says so. What is left of one at the begin of a sample begins there.
        """
        known, separator = self.tokens.documents, self.tokens.separator
        if known is None and separator is None:
            return None
        windows = self.window_of(np.arange(first, first + count))
        begins = np.stack([self._begins(int(window) * self.sequence) for window in windows])
        return np.maximum.accumulate(np.where(begins, np.arange(self.sequence), 0), axis=1)

    def _begins(self, at: int) -> NDArray[np.bool_]:
        """Say which inputs of the sample at a place of the file begin a document: [sequence]."""
        known, inputs = self.tokens.documents, slice(at, at + self.sequence)
        begins: NDArray[np.bool_]
        begins = self.tokens.tokens[inputs] == self.tokens.separator if known is None else known[inputs] != 0
        return begins

    def window_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which window each sample is: an equal shape."""
        epochs, places = np.divmod(samples, self.windows)
        if not self.shuffle:
            return places
        found = np.empty_like(places)
        for epoch in np.unique(epochs):
            there = epochs == epoch
            found[there] = shuffled(places[there], self.windows, self.seed, int(epoch))
        return found

    def _damaged(self, windows: NDArray[np.int64], found: NDArray[np.int64]) -> DescriptionError:
        row, column = np.argwhere(found >= self.vocabulary)[0]
        path, window = self.tokens.path, int(windows[row])
        return fail(
            str(path),
            f"window {window} holds token {found[row, column]} at position "
            f"{window * self.sequence + column}, but the model's vocabulary is {self.vocabulary}: "
            f"the file was damaged after it was built; {rebuild(path.parent)}",
        )


def local_sequences(
    grid: GridSpec, rank: int, step: int, sequences: int, micro_sequences: int
) -> list[tuple[int, int]]:
    """Return the samples (first, count) of each micro-step of one step on one rank.

    The `sequences` of the global batch are split over data × z; ranks that differ only in x and
    y work on the same ones.

    >>> from twin.strategies.four_d.grid import Grid
    >>> local_sequences(Grid(data=2, x=2), rank=3, step=1, sequences=8, micro_sequences=2)
    [(12, 2), (14, 2)]
    """
    replicas = grid.replicas
    own = sequences // replicas
    if sequences % (replicas * micro_sequences):
        raise fail(
            "batch.sequences", f"must be a multiple of data·z·micro_sequences = {replicas * micro_sequences}", sequences
        )
    begin = step * sequences + grid.replica(rank) * own
    return [(begin + done, micro_sequences) for done in range(0, own, micro_sequences)]
