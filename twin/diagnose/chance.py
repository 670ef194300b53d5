"""The probability that healthy parts look as slow as one that does.

The yardsticks are medians and median absolute deviations, whose ratios have no distribution of a known
name when parts are few. So for few parts it is drawn: so many normal values, twenty thousand times, the same
way as they are judged. For many parts Student's distribution is good enough.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from twin.diagnose.observed import Floats
from twin.diagnose.robust import TO_DEVIATION, chance_of_more

DRAWS = 20_000
"""Draws of healthy parts: at the confidence of 0.99 that findings need, 200 of them are left above the score."""
MANY = 96
"""From so many parts on, nothing is drawn."""
EFFICIENCY = 0.37
"""Of the median absolute deviation, with normal values."""
SEED = 4
"""Any number: it is fixed so that the same trace gives the same findings."""


def of_peer(score: float, parts: int) -> float:
    """Chance that any of so many alike parts lies so many deviations above their median.

    >>> of_peer(3.0, 100_000), round(of_peer(6.0, 8192), 6)
    (1.0, 8e-06)
    """
    if parts >= MANY:
        return min(1.0, parts * _tail(score, parts))
    return _share_above(_largest_of(parts), score)


def of_groups(score: float, parts: int, sizes: tuple[int, ...]) -> float:
    """Chance that any of the groups, of so many parts in a row, has scores whose sum over √size is as high."""
    if parts >= MANY:
        return min(1.0, len(sizes) * _tail(score, parts))
    return _share_above(_largest_sum(parts, sizes), score)


def of_split(score: float, others: int) -> float:
    """Chance that one healthy value lies so many deviations (of the others) above the median of others.

    What crosses one link has its noise in common, so that many values of it count as one.
    """
    if others >= MANY:
        return _tail(score, others)
    return _share_above(_apart(others), score)


def of_stalls(stalls: int, steps: int, share: float) -> float:
    """Chance of at least so many stalls in so many steps, each with a share (binomial).

    >>> round(of_stalls(1, 2, 0.5), 6), of_stalls(0, 5, 0.1)
    (0.75, 1.0)
    """
    terms = [math.comb(steps, k) * share**k * (1 - share) ** (steps - k) for k in range(stalls)]
    if stalls > 1 and sum(terms) > 0.5:  # few of many: sum what is small
        terms = [math.comb(steps, k) * share**k * (1 - share) ** (steps - k) for k in range(stalls, steps + 1)]
        return min(1.0, sum(terms))
    return max(0.0, 1.0 - sum(terms))


def _tail(score: float, parts: int) -> float:
    """Chance that one value exceeds a score in deviations that so many parts have told.

    A median absolute deviation tells as much as the usual one of 0.37 times as many parts does.
    """
    return chance_of_more(score, round(EFFICIENCY * parts))


def sure(chance: float) -> float:
    """Confidence: one minus a chance; never more than 0.999."""
    return min(0.999, max(0.0, 1.0 - chance))


def _share_above(drawn: Floats, score: float) -> float:
    """Share of sorted values that reach a score; at least one of all, for who knows."""
    return max(1, len(drawn) - int(np.searchsorted(drawn, score))) / len(drawn)


def _scores(parts: int) -> Floats:
    """Scores of healthy parts, (draws, parts)."""
    values = np.random.default_rng([SEED, parts]).standard_normal((DRAWS, parts))
    values -= np.median(values, axis=1, keepdims=True)
    return np.asarray(values / (TO_DEVIATION * np.median(np.abs(values), axis=1, keepdims=True)))


@cache
def _largest_of(parts: int) -> Floats:
    return np.sort(_scores(parts).max(axis=1))


@cache
def _largest_sum(parts: int, sizes: tuple[int, ...]) -> Floats:
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    sums = np.add.reduceat(_scores(parts), firsts, axis=1) / np.sqrt(np.array(sizes))
    return np.sort(sums.max(axis=1))


@cache
def _apart(others: int) -> Floats:
    random = np.random.default_rng([SEED, others, 1])
    mine, values = random.standard_normal(DRAWS), random.standard_normal((DRAWS, others))
    middle = np.median(values, axis=1, keepdims=True)
    deviation = TO_DEVIATION * np.median(np.abs(values - middle), axis=1)
    return np.sort((mine - middle[:, 0]) / deviation)
