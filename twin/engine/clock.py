"""What happens next: a heap of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Calls back at times, those of one time in the order in which they were asked for."""

    __slots__ = ("_heap", "_later", "_number", "_over", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._number = 0
        self._later: Callable[[], None] | None = None
        self._over: Callable[[], None] | None = None
        self._heap: list[tuple[float, int, Callable[[Any, int], None], Any, int]] = []

    def at(self, time: float, happen: Callable[[Any, int], None], subject: Any, plan: int = 0) -> None:
        """Call `happen(subject, plan)` then."""
        self._number += 1
        heappush(self._heap, (time, self._number, happen, subject, plan))

    def after(self, delay: float, happen: Callable[[Any, int], None], subject: Any, plan: int = 0) -> None:
        """Call `happen(subject, plan)` so many seconds from now."""
        self._number += 1
        heappush(self._heap, (self.now + delay, self._number, happen, subject, plan))

    def before_time_passes(self, do: Callable[[], None]) -> None:
        """Call `do()` when all that happens now has happened; it may ask for more to happen now."""
        self._later = do

    def when_over(self, do: Callable[[], None]) -> None:
        """Call `do()` when nothing more happens now."""
        self._over = do

    @property
    def planned(self) -> Iterator[tuple[float, Callable[[Any, int], None], Any, int]]:
        """What is to happen: when, and what was asked for."""
        for time, _, happen, subject, plan in self._heap:
            yield time, happen, subject, plan

    def pass_over(self, seconds: float) -> None:
        """Let it be so much later, with all that is to happen."""
        self.now += seconds
        self._heap[:] = [(time + seconds, *rest) for time, *rest in self._heap]

    def run(self) -> None:
        """Let everything happen, in order."""
        heap = self._heap
        while heap:
            self.now, _, happen, subject, plan = heappop(heap)
            happen(subject, plan)
            if self._later is not None and (not heap or heap[0][0] > self.now):
                do, self._later = self._later, None
                do()
            if self._over is not None and (not heap or heap[0][0] > self.now):
                do, self._over = self._over, None
                do()
