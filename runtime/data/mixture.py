"""Samples of several data sets, interleaved by weights; see `twin.description.mixture` for the rule.

Each set is walked as it would be alone, in its own permutations and epochs. Which set a sample is of, and which of that
set's samples it is, follows from the sample's number and one cycle of the weights: on every grid and after
every restart the order is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from runtime.data.batches import Batches
from twin.description.mixture import cycle


class Mixture:
    """The samples of `parts`, with whole `weights` in lowest terms."""

    def __init__(self, parts: Sequence[Batches], weights: Sequence[int]) -> None:
        self.parts, self.weights = tuple(parts), np.asarray(weights)
        self.sequence = parts[0].sequence

    @cached_property
    def _cycle(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The set of each sample of a cycle, and how many of that set came before it in the cycle."""
        sets = np.fromiter(cycle(self.weights.tolist()), np.int64, int(self.weights.sum()))
        before = np.empty_like(sets)
        for number, weight in enumerate(self.weights):
            before[sets == number] = np.arange(weight)
        return sets, before

    def places(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which set each sample is of, and which of that set's samples it is: two arrays of an equal shape."""
        sets, before = self._cycle
        rounds, at = np.divmod(samples, len(sets))
        found = sets[at]
        return found, rounds * self.weights[found] + before[at]

    def counts(self, samples: int) -> list[int]:
        """Return how many of the first so many samples are of each set."""
        sets, _ = self._cycle
        rounds, rest = divmod(samples, len(sets))
        within = np.bincount(sets[:rest], minlength=len(self.parts))
        return [int(count) for count in rounds * self.weights + within]

    @property
    def windows(self) -> int:
        """Samples until a set would be read for the second time: what is held out is looked at once at most."""
        sets, before = self._cycle
        ends = []
        for number, part in enumerate(self.parts):
            rounds, rest = divmod(part.windows, int(self.weights[number]))
            ends.append(rounds * len(sets) + int(np.flatnonzero((sets == number) & (before == rest))[0]))
        return min(ends)

    def sequences(self, first: int, count: int) -> NDArray[np.int64]:
        """Return samples first … first+count-1: [count, sequence+1]."""
        found = np.empty((count, self.sequence + 1), np.int64)
        for row, (part, sample) in zip(found, self._each(first, count), strict=True):
            row[:] = part.sequences(sample, 1)[0]
        return found

    def targets(self, first: int, count: int) -> NDArray[np.bool_] | None:
        """Return which targets of samples first … first+count-1 count: [count, sequence]; None if all of all sets do.

        It never depends on the samples whether there are any: ranks agree on whether targets are counted.
        """
        if all(part.tokens.targets is None for part in self.parts):
            return None
        found = np.ones((count, self.sequence), np.bool_)
        for row, (part, sample) in zip(found, self._each(first, count), strict=True):
            if (known := part.targets(sample, 1)) is not None:
                row[:] = known[0]
        return found

    def documents(self, first: int, count: int) -> NDArray[np.int64] | None:
        """Return where in its sample each input's document begins: [count, sequence]; None if each sample is one."""
        found = np.zeros((count, self.sequence), np.int64)
        for row, (part, sample) in zip(found, self._each(first, count), strict=True):
            if (known := part.documents(sample, 1)) is not None:
                row[:] = known[0]
        return found

    def _each(self, first: int, count: int) -> list[tuple[Batches, int]]:
        sets, samples = self.places(np.arange(first, first + count))
        return [(self.parts[number], int(sample)) for number, sample in zip(sets, samples, strict=True)]
