"""Chances that healthy parts look slow, against exact fractions, known distributions and draws."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import atan, comb, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.diagnose.chance import of_split, of_stalls
from twin.diagnose.robust import TO_DEVIATION


@given(steps=st.integers(1, 60), stalls=st.integers(0, 60), parts=st.integers(1, 999))
def test_stalls_are_counted_as_exact_fractions_say(steps: int, stalls: int, parts: int) -> None:
    share = Fraction(parts, 1000)
    exact = sum(comb(steps, k) * share**k * (1 - share) ** (steps - k) for k in range(stalls, steps + 1))
    assert of_stalls(stalls, steps, float(share)) == pytest.approx(float(exact), rel=1e-9, abs=1e-300)


def test_long_traces_have_stalls_too() -> None:
    """Ways to choose 600 of 1,100 steps are no float; of what comes after the first terms nothing is left."""
    assert of_stalls(600, 1100, 0.0003) == 0.0
    share = Fraction(3, 10_000)
    exact = sum(comb(1100, k) * share**k * (1 - share) ** (1100 - k) for k in range(60, 80))
    assert of_stalls(60, 1100, 0.0003) == pytest.approx(float(exact), rel=1e-9, abs=0.0)
    assert of_stalls(10_000, 20_000, 0.5) == pytest.approx(0.5, abs=0.003)


@pytest.mark.parametrize("score", [1.0, 10.0, 1e3, 1e5])
def test_of_two_others_the_chance_is_known(score: float) -> None:
    """Their deviation is half their distance, so the score is Cauchy-distributed, times a factor."""
    exact = 0.5 - atan(score * TO_DEVIATION / sqrt(3)) / pi
    assert of_split(score, 2) == pytest.approx(exact, rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize(("others", "score"), [(5, 100.0), (8, 15.0), (8, 28.0), (15, 8.0), (15, 11.5), (24, 5.5)])
def test_chances_beyond_what_is_drawn_are_not_too_small(others: int, score: float) -> None:
    """Eight million draws tell what is so rare, others drawn anew for each value."""
    above = 0
    for seed in range(16):
        random = np.random.default_rng(seed)
        values = random.standard_normal((500_000, others))
        middle = np.median(values, axis=1)
        deviation = TO_DEVIATION * np.median(np.abs(values - middle[:, None]), axis=1)
        above += int((random.standard_normal(500_000) >= middle + score * deviation).sum())
    seen, error = above / 8e6, sqrt(above) / 8e6
    assert above > 50
    assert seen - 3 * error < 1.05 * of_split(score, others) < 4 * seen


@pytest.mark.parametrize("others", [2, 3, 7, 15, 40, 95])
def test_chances_fall_with_the_score(others: int) -> None:
    chances = [of_split(score, others) for score in np.geomspace(0.1, 1e4, 400)]
    assert all(after <= before for before, after in pairwise(chances))
    assert chances[-1] < 1e-3
