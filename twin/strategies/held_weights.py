"""How much of gathered weights is whole at once, where units are gathered one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Kept = tuple[int, bool]
"""Elements of a unit, and whether it stays when the pass has used it."""


def most_gathered(units: Iterable[Kept], copies: int) -> int:
    """Return the most elements that are whole at once in a pass over units.

    A unit that has come is there `copies` times while it is put in place (2: before and after it is copied out), and
    the next one is on its way then.

    >>> most_gathered([(10, False), (3, False), (3, False), (8, True)], copies=2)
    23
    >>> most_gathered([(5, True), (3, False), (3, False)], copies=1)
    11
    """
    most = stayed = 0
    for (size, stays), (ahead, _) in pairwise((*units, (0, False))):
        most = max(most, stayed + copies * size + ahead)
        stayed += size if stays else 0
    return most
