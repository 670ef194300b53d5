"""The probability that healthy parts look as slow as one that does.

The yardsticks are medians and median absolute deviations, whose ratios have no distribution of a known
name when parts are few. So for few parts it is drawn: so many normal values, twenty thousand times, the same
way as they are judged. For many parts Student's distribution is good enough.

Where many hypotheses are tried, chances matter that are too small to be drawn. The logarithm of a chance falls
ever faster with the logarithm of the score (both factors of a score, a normal value and the inverse of a
deviation, are log-concave in their logarithms, and so is their product), so a straight line through two chances
that were drawn lies above all smaller ones.
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
OUTER, INNER = 1e-3, 1e-2
"""Chances whose scores the line goes through; beyond the outer one nothing is counted."""
EACH = 8
"""Values that are held against one draw of others, so that enough of them reach the outer chance."""
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

    >>> of_split(20.0, 15) > of_split(200.0, 15) > 0.0
    True
    """
    if others >= MANY:
        return _tail(score, others)
    drawn = _apart(others)
    inner, outer = (float(drawn[-round(chance * len(drawn))]) for chance in (INNER, OUTER))
    if score <= outer:
        return _share_above(drawn, score)
    steepest = others // 2  # in the end: half of the others have to lie together
    steepness = min(math.log(INNER / OUTER) / math.log(outer / inner), steepest)
    return OUTER * math.exp(-steepness * math.log(score / outer))


def of_stalls(stalls: int, steps: int, share: float) -> float:
    """Chance of at least so many stalls in so many steps, each with a share between 0 and 1 (binomial).

    >>> round(of_stalls(1, 2, 0.5), 6), of_stalls(0, 5, 0.1)
    (0.75, 1.0)
    """
    if stalls <= 0:
        return 1.0
    one, none = math.log(share), math.log1p(-share)
    ways = math.lgamma(steps + 1)  # logarithms: of 1,100 steps there are more ways than a float can count
    terms = [
        math.exp(ways - math.lgamma(k + 1) - math.lgamma(steps - k + 1) + k * one + (steps - k) * none)
        for k in range(stalls, steps + 1)
    ]
    return min(1.0, math.fsum(terms))


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
    random, draws = np.random.default_rng([SEED, others, 1]), DRAWS * min(10, MANY // others)  # few cost little
    mine, values = random.standard_normal((EACH, draws)), random.standard_normal((draws, others))
    middle = np.median(values, axis=1, keepdims=True)
    deviation = TO_DEVIATION * np.median(np.abs(values - middle), axis=1)
    return np.sort(((mine - middle[:, 0]) / deviation).reshape(-1))
