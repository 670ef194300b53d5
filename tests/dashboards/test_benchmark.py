"""The measurement of what a live page costs tells a cost from noise: its interval, against the binomial's tables."""

from __future__ import annotations

import math
import random

import pytest

from tests.benchmarks.dashboard_live import paired_ratio


@pytest.mark.parametrize(("count", "place"), [(6, 1), (9, 2), (10, 2), (20, 6), (30, 10)])
def test_the_interval_ends_where_tables_of_the_sign_test_say(count: int, place: int):
    """At the k-th smallest and largest ratio, as printed for 95 % in tables of order statistics."""
    watched = [1 + number / 100 for number in range(1, count + 1)]
    random.Random(count).shuffle(watched)
    _, low, high = paired_ratio([1.0] * count, watched)
    assert (low, high) == pytest.approx((1 + place / 100, 1 + (count + 1 - place) / 100))


def test_of_few_pairs_nothing_is_told():
    assert paired_ratio([1.0] * 5, [2.0] * 5) == (2.0, 0.0, math.inf)


def test_the_interval_holds_the_cost_nineteen_times_of_twenty_whatever_else_runs():
    """Both of a pair meet the same load; single steps are off by half: the cost of 1 % is held, and 5 % told apart."""
    chance, held, told = random.Random(1), 0, 0
    for _ in range(400):
        load = [chance.choice([1.0, 1.0, 1.6, 2.5]) for _ in range(20)]
        alone = [one * chance.lognormvariate(0, 0.02) for one in load]
        noisy = [one * chance.lognormvariate(0, 0.02) for one in load]
        _, low, high = paired_ratio(alone, [1.01 * one for one in noisy])
        held += low <= 1.01 <= high
        told += paired_ratio(alone, [1.05 * one for one in noisy])[1] > 1.02
    assert held >= 0.93 * 400
    assert told >= 0.8 * 400
