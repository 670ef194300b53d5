"""A picture of any number of events: for each lane and pixel how long each kind took, as heights of colours."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dashboards.events import Floats

CHUNK = 1 << 16
"""Events that are worked on at a time: what they need, and the lanes that they are on, stay in a core's caches."""


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
    seen = np.flatnonzero((end > low) & (start < high))
    there = np.flatnonzero(np.bincount(kind if len(seen) == len(kind) else kind[seen], minlength=kinds))
    place_of = np.zeros(kinds, dtype=np.int64)  # a few of many kinds are there: the others need no sums
    place_of[there] = np.arange(len(there))
    per_second = columns / (high - low)
    # each event as if it filled its first pixel and all up to its last; and what puts both ends right
    jumps, ends = np.zeros((len(there), lanes, columns)), np.zeros((len(there), lanes, columns))
    for chunk in range(0, len(seen), CHUNK):
        at = seen[chunk : chunk + CHUNK]
        begin = np.clip((start[at] - low) * per_second, 0.0, columns)
        stop = np.clip((end[at] - low) * per_second, 0.0, columns)
        amount = np.ones(len(at)) if weight is None else weight[at].astype(np.float64)
        first = np.minimum(begin.astype(np.int64), columns - 1)
        last = np.minimum(stop.astype(np.int64), columns - 1)
        of_lane = lane[at].astype(np.int64)  # sorted by lane as events are, a piece is on a few of them
        lowest = int(of_lane.min())
        some = (len(there), int(of_lane.max()) + 1 - lowest, columns)
        row = (place_of[kind[at]] * some[1] + of_lane - lowest) * columns
        for sums, parts in (
            (jumps, ((row + first, amount), (row + last, -amount))),
            (ends, ((row + first, amount * (first - begin)), (row + last, amount * (stop - last)))),
        ):
            for place, value in parts:
                found = np.bincount(place, weights=value, minlength=math.prod(some))
                sums[:, lowest : lowest + some[1]] += found.reshape(some)
    filled = np.zeros(shape)
    filled[there] = np.cumsum(jumps, axis=2) + ends
    return filled


def painted(shares: Floats, colours: NDArray[np.floating], rows: int) -> NDArray[np.uint8]:
    """Paint each pixel of each lane as a column of colours, as high as each kind's share; (lanes * rows, columns, 4).

    `shares` are (kinds, lanes, columns); kinds that run at once, and so add up to more than a pixel, are
    made smaller alike. `colours` are (kinds, 3), or (kinds, lanes, columns, 3) from 0 to 255. The first kind
    stands at the bottom. Exact to the rounding of a byte: what part of a row is filled becomes its opacity.
    """
    kinds, lanes, columns = shares.shape
    scale = rows / np.maximum(shares.sum(axis=0), 1.0)
    edge = np.arange(rows, dtype=np.float32)[None, :, None]
    level = np.zeros((lanes, 1, columns), dtype=np.float32)
    filled = np.zeros((lanes, rows, columns), dtype=np.float32)
    mixed = np.zeros((lanes, rows, columns, 3), dtype=np.float32)
    for kind in range(kinds):
        if not shares[kind].any():
            continue
        top = level + (shares[kind] * scale).astype(np.float32)[:, None, :]
        part = np.clip(np.minimum(top, edge + 1) - np.maximum(level, edge), 0.0, 1.0)
        colour = colours[kind] if colours.ndim == 2 else colours[kind][:, None]
        filled += part
        mixed += part[..., None] * colour.astype(np.float32)
        level = top
    pixels = np.empty((lanes, rows, columns, 4), dtype=np.uint8)
    pixels[..., :3] = (mixed / np.maximum(filled, 1e-9)[..., None]).round().clip(0, 255)
    pixels[..., 3] = (255 * filled).round().clip(0, 255)
    return np.ascontiguousarray(pixels[:, ::-1]).reshape(lanes * rows, columns, 4)
