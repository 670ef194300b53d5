"""When compute is done that is slower while any of several collectives runs beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twin.engine.cube import Floats


def stretched(now: Floats, work: Floats, stretch: float, running: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Return when work that begins now is done; beside what runs it takes `stretch` times as long.

    `now` and `work` are arrays over ranks, `running` (begin, end) of collectives, arrays that
    broadcast with them. `work` is used up.

    >>> stretched(np.array([0.0]), np.array([3.0]), 2.0, [(np.array([1.0]), np.array([5.0]))])
    array([5.])
    """
    intervals = _in_order(running) if len(running) > 1 else running
    now, scratch = now.copy(order="K"), np.empty_like(now)
    for begin, end in intervals:
        np.subtract(begin, now, out=scratch)  # before it begins
        np.maximum(scratch, 0.0, out=scratch)
        np.minimum(scratch, work, out=scratch)
        now += scratch
        work -= scratch
        np.subtract(end, now, out=scratch)  # beside it
        np.maximum(scratch, 0.0, out=scratch)
        scratch *= 1.0 / stretch
        np.minimum(scratch, work, out=scratch)
        work -= scratch
        scratch *= stretch
        now += scratch
    now += work
    return now


def _in_order(running: Sequence[tuple[Floats, Floats]]) -> list[tuple[Floats, Floats]]:
    """Sort the intervals of every rank by their begins."""
    intervals = list(running)
    for last in range(len(intervals) - 1, 0, -1):
        for i in range(last):
            (begin, end), (other_begin, other_end) = intervals[i], intervals[i + 1]
            in_order = begin <= other_begin
            if in_order.all():
                continue
            intervals[i] = (np.minimum(begin, other_begin), np.where(in_order, end, other_end))
            intervals[i + 1] = (np.maximum(begin, other_begin), np.where(in_order, other_end, end))
    return intervals
