"""Rectangles that cover a tensor exactly once, or do not."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from math import prod

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes, of one or two dimensions."""


def cover_problem(shape: Sequence[int], boxes: Sequence[Box]) -> str | None:
    """Say what is wrong if the boxes do not cover the shape exactly once; None if they do.

    A sweep over the rows keeps the columns in use, which are disjoint and therefore in one order:
    n log n comparisons, also for a hostile file.

    >>> cover_problem([2, 4], [((0, 0), (2, 3)), ((0, 3), (1, 1)), ((1, 3), (1, 1))])
    >>> cover_problem([2, 4], [((0, 0), (2, 3)), ((0, 2), (2, 2))])
    'overlap at (0, 2)'
    >>> cover_problem([5], [((0,), (2,)), ((3,), (2,))])
    'leave 1 of 5 elements out'
    """
    for offsets, sizes in boxes:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return f"have another number of dimensions at {offsets}"
        if any(o < 0 or n <= 0 or o + n > s for o, n, s in zip(offsets, sizes, shape, strict=True)):
            return f"lie outside {tuple(shape)} at {offsets}"
    columns: list[tuple[int, int]] = []  # in use, ascending
    until: list[tuple[int, tuple[int, int]]] = []  # the row where each comes free
    for offsets, sizes in sorted(boxes):
        (row, column), (height, width) = (*offsets, 0)[:2], (*sizes, 1)[:2]
        while until and until[0][0] <= row:
            _, free = heapq.heappop(until)
            del columns[bisect_left(columns, free)]
        span = (column, column + width)
        place = bisect_left(columns, span)
        after = columns[place : place + 1]
        before = columns[place - 1 : place] if place else []
        if any(first < span[1] and span[0] < last for first, last in (*before, *after)):
            return f"overlap at {tuple(offsets)}"
        insort(columns, span)
        heapq.heappush(until, (row + height, span))
    missing = prod(shape) - sum(prod(sizes) for _, sizes in boxes)
    return f"leave {missing} of {prod(shape)} elements out" if missing else None
