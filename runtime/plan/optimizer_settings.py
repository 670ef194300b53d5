"""Learning rate by step; no torch here, so that a job is checked without loading it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from twin.description.train import Train


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step: linear warm-up, then a cosine down to `least`."""

    peak: float
    least: float
    warmup_steps: int
    steps: int

    @classmethod
    def of(cls, train: Train) -> Self:
        """Fill in what the job left open: a tenth of the peak, and of the steps."""
        rate = train.learning_rate
        least = rate.peak / 10 if rate.least is None else rate.least
        warmup = min(100, train.steps // 10) if rate.warmup_steps is None else rate.warmup_steps
        return cls(rate.peak, least, warmup, train.steps)

    def at(self, step: int) -> float:
        """Return the learning rate of step 0, 1, and so on.

        >>> Schedule(1.0, 0.1, 2, 10).at(0), Schedule(1.0, 0.1, 2, 10).at(10)
        (0.5, 0.1)
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        return self.least + (self.peak - self.least) * 0.5 * (1 + math.cos(math.pi * done))
