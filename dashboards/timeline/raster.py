"""A picture of any number of events: for each lane and pixel what took most of the time."""

from __future__ import annotations

import numpy as np

from dashboards.events import Floats, Ints


def coverage(lane: Ints, kind: Ints, start: Floats, end: Floats, window: tuple[float, float], lanes: int, kinds: int,
             columns: int, weight: Floats | None = None) -> Floats:  # fmt: skip
    """Return the time of each kind in each pixel, as a share of the pixel, (kinds, lanes, columns).

    Exact: an event's first and last pixel get the parts that it covers, those between all. With
    `weight` each event counts so many times.
    """
    low, high = window
    seen = (end > low) & (start < high)
    lane, kind = lane[seen].astype(np.int64), kind[seen].astype(np.int64)
    pixel = (high - low) / columns
    begin = np.clip((start[seen] - low) / pixel, 0.0, columns)
    stop = np.clip((end[seen] - low) / pixel, 0.0, columns)
    amount = np.ones(len(begin)) if weight is None else weight[seen]
    first = np.minimum(begin.astype(np.int64), columns - 1)
    last = np.minimum(stop.astype(np.int64), columns - 1)
    size = kinds * lanes * columns
    row = (kind * lanes + lane) * columns
    # every event as if it filled all pixels after its first up to its last, then the two ends put right
    jumps = np.bincount(row + first, weights=amount, minlength=size)
    jumps -= np.bincount(row + last, weights=amount, minlength=size)
    filled = np.cumsum(jumps.reshape(kinds, lanes, columns), axis=2)
    ends = np.bincount(row + first, weights=amount * (first - begin), minlength=size)
    ends += np.bincount(row + last, weights=amount * (stop - last), minlength=size)
    return np.asarray(filled + ends.reshape(kinds, lanes, columns))


def dominant(shares: Floats) -> Floats:
    """Return the kind that takes most of each pixel, NaN where nothing does; (lanes, columns)."""
    busiest = shares.argmax(axis=0).astype(np.float64)
    busiest[shares.max(axis=0) <= 1.0 - shares.sum(axis=0)] = np.nan
    return busiest
