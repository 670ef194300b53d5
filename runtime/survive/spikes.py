"""Spikes: losses that leap out of those before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

NORMAL = 1.4826
"""Median absolute deviations in the standard deviation of a normal distribution."""
FLOOR = 0.05
"""Least deviation, as a share of the median: losses that hardly vary make no small step a leap."""


class Spikes:
    """The losses of the last steps, and what would be a spike after them."""

    def __init__(self, factor: float, window: int, losses: Iterable[tuple[int, float]] = ()) -> None:
        self.factor, self.window = factor, window
        self._losses: deque[tuple[int, float]] = deque(losses, maxlen=window)

    def limit(self) -> float | None:
        """The largest loss (nats) that is no spike; None until the window is full."""
        if len(self._losses) < self.window:
            return None
        values = [loss for _, loss in self._losses]
        middle = median(values)
        deviation = NORMAL * median(abs(value - middle) for value in values)
        return middle + self.factor * max(deviation, FLOOR * abs(middle))

    def leaps(self, step: int, loss: float) -> bool:
        """Tell whether the loss of a step is a spike; if not it counts from now on."""
        limit = self.limit()
        if limit is not None and loss > limit:
            return True
        self._losses.append((step, loss))
        return False

    def forget(self, step: int) -> None:
        """Drop the losses of this step and later ones: they will come again."""
        kept = [entry for entry in self._losses if entry[0] < step]
        self._losses = deque(kept, maxlen=self.window)
