"""A picture of any number of events: for each lane and pixel what took most of the time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dashboards.events import Floats

CHUNK = 1 << 19
"""Events that are worked on at a time, to keep what they need small."""


def coverage(
    lane: NDArray[np.integer],
    kind: NDArray[np.integer],
    start: Floats,
    end: Floats,
    window: tuple[float, float],
    shape: tuple[int, int, int],
    weight: NDArray[np.floating] | None = None,
) -> Floats:
    """Return the time of each kind in each pixel, as a share of the pixel.

    `shape` is (kinds, lanes, columns), also of what is returned. Exact: an event's first and last
    pixel get the parts that it covers, those between all. With `weight` each event counts so many
    times.
    """
    kinds, lanes, columns = shape
    low, high = window
    per_second, size = columns / (high - low), kinds * lanes * columns
    jumps, ends = np.zeros(size), np.zeros(size)
    seen = np.flatnonzero((end > low) & (start < high))
    for chunk in range(0, len(seen), CHUNK):
        at = seen[chunk : chunk + CHUNK]
        begin = np.clip((start[at] - low) * per_second, 0.0, columns)
        stop = np.clip((end[at] - low) * per_second, 0.0, columns)
        amount = np.ones(len(at)) if weight is None else weight[at].astype(np.float64)
        first = np.minimum(begin.astype(np.int64), columns - 1)
        last = np.minimum(stop.astype(np.int64), columns - 1)
        row = (kind[at].astype(np.int64) * lanes + lane[at]) * columns
        # every event as if it filled its first pixel and all up to its last; then both ends are put right
        for place, value in ((row + first, amount), (row + last, -amount)):
            jumps += np.bincount(place, weights=value, minlength=size)
        for place, value in ((row + first, amount * (first - begin)), (row + last, amount * (stop - last))):
            ends += np.bincount(place, weights=value, minlength=size)
    filled = np.cumsum(jumps.reshape(shape), axis=2)
    return np.asarray(filled + ends.reshape(shape))


def dominant(shares: Floats) -> Floats:
    """Return the kind that takes most of each pixel, NaN where nothing does; (lanes, columns)."""
    busiest = shares.argmax(axis=0).astype(np.float64)
    busiest[shares.max(axis=0) <= 1.0 - shares.sum(axis=0)] = np.nan
    return busiest
