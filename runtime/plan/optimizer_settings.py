"""Learning rate by step; no torch here, so that a job is checked without loading it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from twin.description.train import Shape, Train


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step: linear warm-up, then down to `least` in the shape that `train.learning_rate` names."""

    peak: float
    least: float
    warmup_steps: int
    steps: int
    shape: Shape = "cosine"
    decay_steps: int = 0
    """Of wsd alone."""

    @classmethod
    def of(cls, train: Train) -> Self:
        """Fill in what the job left open: a tenth of the peak, and of the steps."""
        rate, tenth = train.learning_rate, train.steps // 10
        least = rate.peak / 10 if rate.least is None else rate.least
        warmup = min(100, tenth) if rate.warmup_steps is None else rate.warmup_steps
        decay = (tenth if rate.decay_steps is None else rate.decay_steps) if rate.schedule == "wsd" else 0
        least = rate.peak if rate.schedule == "constant" else least
        return cls(rate.peak, least, warmup, train.steps, rate.schedule, decay)

    def at(self, step: int) -> float:
        """Return the learning rate of step 0, 1, and so on.

        >>> Schedule(1.0, 0.1, 2, 10).at(0), Schedule(1.0, 0.1, 2, 10).at(10)
        (0.5, 0.1)
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return self.peak
        first = self.warmup_steps if self.shape != "wsd" else max(self.warmup_steps, self.steps - self.decay_steps)
        done = min(1.0, max(0.0, (step - first) / max(1, self.steps - first)))
        left = 0.5 * (1 + math.cos(math.pi * done)) if self.shape == "cosine" else 1 - done
        return self.least + (self.peak - self.least) * left
