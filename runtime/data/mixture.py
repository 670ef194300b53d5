"""Samples of several data sets, interleaved by weights; see `twin.description.mixture` for the rule.

Each set is walked as it would be alone, in its own permutations and epochs. Which set a sample is of, and which of that
set's samples it is, follows from the sample's number and one cycle of the weights: on every grid and after
every restart the order is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from runtime.data.batches import Batches
from twin.description.mixture import cycle


@cache
def cycle_of(weights: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the set of each sample of a cycle, and how many of that set come before it in the cycle."""
    sets = np.fromiter(cycle(weights), np.int64, sum(weights))
    before = np.empty_like(sets)
    for number, weight in enumerate(weights):
        before[sets == number] = np.arange(weight)
    return sets, before


class Mixture:
    """The samples of `parts`, with whole `weights` in lowest terms."""

    def __init__(self, parts: Sequence[Batches], weights: Sequence[int]) -> None:
        self.parts, self.weights = tuple(parts), tuple(weights)
        self.sequence = parts[0].sequence

    def places(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which set each sample is of, and which of that set's samples it is: two arrays of an equal shape."""
        sets, before = cycle_of(self.weights)
        rounds, at = np.divmod(samples, len(sets))
        found = sets[at]
        return found, rounds * np.asarray(self.weights)[found] + before[at]

    def counts(self, samples: int) -> list[int]:
        """Return how many of the first so many samples are of each set."""
        sets, _ = cycle_of(self.weights)
        rounds, rest = divmod(samples, len(sets))
        within = np.bincount(sets[:rest], minlength=len(self.parts))
        return [rounds * weight + int(more) for weight, more in zip(self.weights, within, strict=True)]

    @property
    def windows(self) -> int:
        """Samples until a set would be read for the second time: what is held out is looked at once at most."""
        sets, before = cycle_of(self.weights)
        ends = []
        for number, part in enumerate(self.parts):
            rounds, rest = divmod(part.windows, self.weights[number])
            ends.append(rounds * len(sets) + int(np.flatnonzero((sets == number) & (before == rest))[0]))
        return min(ends)

    def sequences(self, first: int, count: int) -> NDArray[np.int64]:
        """Return samples first … first+count-1: [count, sequence+1]."""
        found = np.empty((count, self.sequence + 1), np.int64)
        for part, rows, begin in self._each(first, count):
            found[rows] = part.sequences(begin, len(rows))
        return found

    def targets(self, first: int, count: int) -> NDArray[np.bool_] | None:
        """Return which targets of samples first … first+count-1 count: [count, sequence]; None if all of all sets do.

        It never depends on the samples whether there are any: ranks agree on whether targets are counted.
        """
        if all(part.tokens.targets is None for part in self.parts):
            return None
        found = np.ones((count, self.sequence), np.bool_)
        for part, rows, begin in self._each(first, count):
            if (known := part.targets(begin, len(rows))) is not None:
                found[rows] = known
        return found

    def documents(self, first: int, count: int) -> NDArray[np.int64]:
        """Return where in its sample each input's document begins: [count, sequence]; 0 where a sample is one."""
        found = np.zeros((count, self.sequence), np.int64)
        for part, rows, begin in self._each(first, count):
            if (known := part.documents(begin, len(rows))) is not None:
                found[rows] = known
        return found

    def _each(self, first: int, count: int) -> Iterator[tuple[Batches, NDArray[np.int64], int]]:
        """Yield the sets that the samples are of, their rows, and the first of them; a set's own follow each other."""
        sets, samples = self.places(np.arange(first, first + count))
        for number, part in enumerate(self.parts):
            rows = np.flatnonzero(sets == number)
            if len(rows):
                yield part, rows, int(samples[rows[0]])
