"""When ops ran, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Times:
    """When some ops ran, seconds, arrays (ops,); `Timeline` says what each means."""

    start: Floats
    end: Floats
    arrival: Floats
    share: Floats

    @classmethod
    def joined(cls, several: Sequence[Times], order: Ints | None = None) -> Times:
        """Put those of several stretches of ops behind each other, or into another order."""
        columns = zip(*((times.start, times.end, times.arrival, times.share) for times in several), strict=True)
        joined = map(np.concatenate, columns)  # one after the other: they may be long
        return cls(*joined) if order is None else cls(*(column[order] for column in joined))

    def __getitem__(self, places: Ints) -> Times:
        return Times(self.start[places], self.end[places], self.arrival[places], self.share[places])
