"""Numbers that an optimizer is set by; no torch here, so that a job is checked without loading it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step: linear warm-up, then a cosine down to `least`."""

    peak: float
    least: float
    warmup_steps: int
    steps: int

    def at(self, step: int) -> float:
        """Return the learning rate of step 0, 1, and so on.

        >>> Schedule(1.0, 0.1, 2, 10).at(0), Schedule(1.0, 0.1, 2, 10).at(10)
        (0.5, 0.1)
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        return self.least + (self.peak - self.least) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class AdamSettings:
    """Constants of AdamW (Loshchilov, Hutter 2019), and of clipping."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
