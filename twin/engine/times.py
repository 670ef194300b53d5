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
    def joined(cls, several: Sequence[Times]) -> Times:
        """Put those of several stretches of ops behind each other."""
        columns = ((times.start, times.end, times.arrival, times.share) for times in several)
        return cls(*map(np.concatenate, zip(*columns, strict=True)))

    def __getitem__(self, places: Ints) -> Times:
        return Times(self.start[places], self.end[places], self.arrival[places], self.share[places])
