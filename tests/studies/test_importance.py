"""Importance of factors: Shapley values against all orders of the players, the axioms, and closed forms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from twin.studies.description import Study
from twin.studies.importance import conditional_means, importance, shapley_values, variances

GRIDS = st.lists(st.integers(1, 4), min_size=2, max_size=4).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.floats(-100, 100, width=32))
)


def by_permutations(worth: list[float]) -> list[float]:
    """The definition: what a player adds when it comes, averaged over all orders."""
    players = len(worth).bit_length() - 1
    total = [0.0] * players
    for order in itertools.permutations(range(players)):
        there = 0
        for player in order:
            total[player] += worth[there | 1 << player] - worth[there]
            there |= 1 << player
    return [value / math.factorial(players) for value in total]


def games(players: int) -> Any:
    return st.lists(st.floats(-1e3, 1e3), min_size=2**players, max_size=2**players).map(lambda w: [0.0, *w[1:]])


@given(st.integers(1, 5).flatmap(games))
def test_shapley_values_are_means_over_all_orders(worth):
    assert shapley_values(worth) == pytest.approx(by_permutations(worth), abs=1e-9)


@given(st.integers(1, 6).flatmap(games))
def test_efficiency(worth):
    assert shapley_values(worth).sum() == pytest.approx(worth[-1], abs=1e-8)


@given(games(4), st.integers(0, 3), st.integers(0, 3))
def test_symmetry(worth, one, other):
    """Two that add the same to every coalition have the same value."""

    def swapped(coalition: int) -> int:
        bits = (coalition >> one & 1, coalition >> other & 1)
        rest = coalition & ~(1 << one) & ~(1 << other)
        return rest | bits[1] << one | bits[0] << other

    fair = [(worth[c] + worth[swapped(c)]) / 2 for c in range(len(worth))]
    values = shapley_values(fair)
    assert values[one] == pytest.approx(values[other], abs=1e-9)


@given(games(4), st.integers(0, 3), st.floats(-10, 10))
def test_dummy(worth, player, own):
    """One that adds the same to every coalition has that value."""
    game = [worth[c & ~(1 << player)] + (own if c >> player & 1 else 0.0) for c in range(len(worth))]
    assert shapley_values(game)[player] == pytest.approx(own, abs=1e-8)


@given(games(3), games(3))
def test_additivity(one, other):
    both = shapley_values([a + b for a, b in zip(one, other, strict=True)])
    assert both == pytest.approx(shapley_values(one) + shapley_values(other), abs=1e-8)


@given(GRIDS)
def test_variances_are_those_of_means_taken_one_by_one(grid):
    found = variances(conditional_means(grid))
    for coalition, variance in enumerate(found):
        members = [axis for axis in range(grid.ndim) if coalition >> axis & 1]
        groups: dict[tuple[int, ...], list[float]] = {}
        for index in np.ndindex(grid.shape):
            groups.setdefault(tuple(index[axis] for axis in members), []).append(float(grid[index]))
        means = [math.fsum(group) / len(group) for group in groups.values()]
        centre = math.fsum(means) / len(means)
        assert variance == pytest.approx(math.fsum((m - centre) ** 2 for m in means) / len(means), abs=1e-8)


def swept(values: np.ndarray, **keys: Any) -> tuple[Study, list[dict[str, Any]]]:
    """A sweep whose points took these times; NaN: does not fit, infinity: refused."""
    names = [f"key{axis}" for axis in range(values.ndim)]
    vary = {name: list(range(size)) for name, size in zip(names, values.shape, strict=True)}
    study = Study.model_validate({"study": "sweep", "job": {}, "vary": vary} | keys)
    rows = []
    for number, (index, seconds) in enumerate(np.ndenumerate(values), 1):
        row = {"point": number, **dict(zip(names, index, strict=True)), "status": "done", "reason": ""}
        if math.isinf(seconds):
            row["status"] = "refused"
        else:
            row |= {"step_seconds": 99.0 if math.isnan(seconds) else seconds, "memory_fits": not math.isnan(seconds)}
        rows.append(row)
    return study, rows


@given(
    arrays.arrays(np.float64, 3, elements=st.floats(0, 10), unique=True),
    arrays.arrays(np.float64, 4, elements=st.floats(0, 10), unique=True),
)
def test_a_sum_of_factors_has_their_own_variances(a, b):
    """Nothing interacts: alone, with others and the Shapley share are the same, and the third factor is a dummy."""
    grid = (a[:, None] + b)[..., None] + np.zeros(2)
    found = importance(*swept(grid))
    assert found is not None
    total = a.var() + b.var()
    expected = {"key0": a.var() / total, "key1": b.var() / total, "key2": 0.0}
    means = {"key0": np.abs(a - a.mean()).mean(), "key1": np.abs(b - b.mean()).mean(), "key2": 0.0}
    for factor in found.factors:
        shares = (factor.shapley_share, factor.first_order_share, factor.total_share)
        assert shares == pytest.approx((expected[factor.name],) * 3, abs=1e-9)
        assert factor.mean_absolute == pytest.approx(means[factor.name], abs=1e-9)
    assert [f.shapley_share for f in found.factors] == sorted((f.shapley_share for f in found.factors), reverse=True)


def test_two_that_only_act_together_share_alike():
    found = importance(*swept(np.array([[1.0, 2.0], [2.0, 1.0]])))
    assert found is not None
    for factor in found.factors:
        assert (factor.shapley_share, factor.first_order_share, factor.total_share) == (0.5, 0.0, 1.0)
        assert factor.mean_absolute == 0.25
        assert factor.feasibility_share == 0.0


def test_what_cannot_run_counts_as_the_worst_that_can():
    """A point that is refused, and one that does not fit and would be slower still."""
    found = importance(*swept(np.array([[1.0, math.nan], [3.0, math.inf]])))
    same = importance(*swept(np.array([[1.0, 3.0], [3.0, 3.0]])))
    assert found is not None
    assert same is not None
    assert (found.penalty, found.feasible, found.points) == (3.0, 2, 4)
    shares = {factor.name: factor.feasibility_share for factor in found.factors}
    assert shares == {"key0": 0.0, "key1": 1.0}
    for one, other in zip(found.factors, same.factors, strict=True):
        assert one.shapley_share == other.shapley_share
        assert one.best_level("step_seconds").value == "0"


def test_of_a_rate_the_worst_is_the_least():
    study, rows = swept(np.array([[1.0, 2.0], [3.0, math.nan]]), objective="tokens_per_second")
    found = importance(study, [row | {"tokens_per_second": 6.0 / row["step_seconds"]} for row in rows])
    assert found is not None
    assert found.penalty == 2.0
    assert {f.name: f.best_level("tokens_per_second").value for f in found.factors} == {"key0": "0", "key1": "0"}


@pytest.mark.parametrize(
    "case",
    ["constant", "crashed", "nothing can run", "no objective", "one factor", "points", "weak scaling", "many factors"],
)
def test_where_there_is_no_answer(case):
    values = np.arange(4.0).reshape(2, 2) + 1
    study, rows = swept(values)
    if case == "constant":
        found = importance(*swept(np.full((3, 3), 0.1)))
        assert found is not None
        assert all(factor.shapley_share == factor.total_share == 0.0 for factor in found.factors)
        return
    if case == "crashed":
        rows[1]["status"] = "crashed"
    elif case == "nothing can run":
        rows = [row | {"memory_fits": False} for row in rows]
    elif case == "no objective":  # of the two that can run one does not know what it draws
        study, rows = swept(np.array([[1.0, 2.0], [math.nan, math.nan]]), objective="energy_joules_per_token")
        rows[0]["energy_joules_per_token"] = 1.0
    elif case == "one factor":
        study, rows = swept(values[:1])
    elif case == "points":
        study = Study.model_validate({"study": "sweep", "job": {}, "points": [{"a": 1}, {"a": 2}], "vary": study.vary})
    elif case == "weak scaling":
        study = study.model_copy(update={"study": "weak_scaling"})
    else:
        study, rows = swept(np.ones((2,) * 11))
    assert importance(study, rows) is None
