"""Which tokens of a sequence a rank has that shares it: of 2·c parts, rank i has i and 2·c − 1 − i.

So every rank's queries see as many keys as any other's, and its own tokens lie in the order of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Places = tuple[range, ...]
"""Of tokens in their sequence, in the order in which they lie."""


def places(length: int, ranks: int, rank: int) -> Places:
    """Return the places of a rank's tokens.

    >>> places(16, 2, 1)
    (range(4, 8), range(8, 12))
    """
    if ranks == 1:
        return (range(length),)
    part = length // (2 * ranks)
    return tuple(range(number * part, (number + 1) * part) for number in (rank, 2 * ranks - 1 - rank))


def some(of: Places, begin: int, count: int) -> Places:
    """Return the places of so many tokens from one on.

    >>> some((range(4, 8), range(20, 24)), 2, 4)
    (range(6, 8), range(20, 22))
    """
    found, passed = [], 0
    for each in of:
        inside = each[max(0, begin - passed) : max(0, begin + count - passed)]
        passed += len(each)
        if inside:
            found.append(inside)
    return tuple(found)


def taken(whole: torch.Tensor, of: Places, dimension: int) -> torch.Tensor:
    """Take the tokens of these places along a dimension of sequences; all of them as they are."""
    if len(of) == 1:
        only = of[0]
        return whole if len(only) == whole.shape[dimension] else whole.narrow(dimension, only.start, len(only))
    return torch.cat([whole.narrow(dimension, each.start, len(each)) for each in of], dimension)


def of_ranks(whole: torch.Tensor, ranks: int, dimension: int) -> list[torch.Tensor]:
    """Return the tokens of each rank, of all in the order of the sequence."""
    parts = whole.chunk(2 * ranks, dimension)
    return [torch.cat((parts[rank], parts[-1 - rank]), dimension) for rank in range(ranks)]


def in_order(by_rank: Sequence[torch.Tensor], dimension: int) -> torch.Tensor:
    """Put the tokens of all ranks into the order of the sequence; of each rank an even number of them."""
    halves = [each.chunk(2, dimension) for each in by_rank]
    return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], dimension)
