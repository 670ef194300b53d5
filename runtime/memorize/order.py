"""When each text comes: its repetitions spread evenly over the steps, other text between them.

Repetition j of r lies at a random place of the interval [j/r, (j+1)/r) of the training, so that texts that come equally
often, alone, come once an epoch, shuffled. Other text is spread in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.memorize.texts import Pool


@dataclass(frozen=True)
class Order:
    """The samples of one training, by number."""

    pool: Pool
    text: NDArray[np.int64]
    """Number of the text at each sample, -1 for other text."""
    times: NDArray[np.int64]
    """How often that text has come before; for other text the number of the window."""
    length: int
    """Tokens of a sample: sequence + 1."""
    shift: int
    """Every other time a text begins so many tokens later."""

    def sequences(self, first: int, count: int) -> NDArray[np.int64]:
        """Return samples first … first+count-1: [count, sequence+1]."""
        found = np.empty((count, self.length), np.int64)
        for row, sample in enumerate(range(first, first + count)):
            text, times = int(self.text[sample]), int(self.times[sample])
            if text < 0:
                found[row] = self.pool.background[times]
            else:
                begin = self.shift * (times % 2)
                found[row] = self.pool.texts[text, begin : begin + self.length]
        return found

    def targets(self, first: int, count: int) -> None:
        """Let every target count."""

    def documents(self, first: int, count: int) -> None:
        """Take each sample for one document."""


def order_of(
    pool: Pool, buckets: Mapping[int, NDArray[np.int64]], samples: int, background_first: int, seed: int, shift: int
) -> Order:
    """Order the samples of a training: `background_first` of other text alone, then all texts with other text between.

    `buckets` are the texts by how often they come.
    """
    draw = np.random.default_rng([seed, 2])
    length = pool.background.shape[1]
    comes = [
        (t, j, (j + draw.random()) / times) for times, texts in buckets.items() for t in texts for j in range(times)
    ]
    others = samples - background_first - len(comes)
    comes += [(-1, background_first + i, (i + draw.random()) / others) for i in range(others)]
    comes.sort(key=lambda one: one[2])
    before = [(-1, i) for i in range(background_first)]
    text, times = np.array([*before, *((t, j) for t, j, _ in comes)], np.int64).reshape(-1, 2).T
    return Order(pool, text, times, length, shift)
