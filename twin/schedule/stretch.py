"""Stretches of things in order that are alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def around(which: NDArray[np.bool_], place: int) -> tuple[int, int]:
    """Return the stretch of true ones around a place, its first and the one behind its last; empty if that is false.

    >>> around(np.array([True, False, True, True, False]), 3), around(np.array([True, False]), 1)
    ((2, 4), (1, 1))
    """
    false = np.flatnonzero(~which)
    at = int(np.searchsorted(false, place))
    begin = int(false[at - 1]) + 1 if at else 0
    end = int(false[at]) if at < len(false) else len(which)
    return (begin, end) if begin <= place < end else (place, place)
