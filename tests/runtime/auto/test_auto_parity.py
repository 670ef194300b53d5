"""A model of one's own trains on every grid exactly as it does serially."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.runtime.auto import own
from tests.tiers import quick
from twin.strategies.four_d.grid import AXES, factorizations

GRIDS = [dict(zip(AXES, grid.sizes, strict=True)) for grid in factorizations(4)]
EIGHT = {"data": 1, "z": 2, "y": 2, "x": 2}
FULL = {"data": 1, "z": 2, "y": 1, "x": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "no_overlap": {"overlap": False},
    "deep_prefetch": {"prefetch_depth": 3},
    "recompute": {"recompute": "saved"},
    "recompute_reentrant": {"recompute": "reentrant"},
    "micro_steps": {"micro_steps": 2},
    "evaluation": {"peek": True},
    "small_buckets": {"bucket_bytes": 512},
}


@cache
def serial() -> own.Outcome:
    return own.train_serial()


def check(answers: list[tuple[own.Outcome, list[str]]], cut: bool = True) -> None:
    losses, norms, parameters = serial()
    for (loss, norm, full), layers in answers:
        assert len(layers) >= 7 * cut
        np.testing.assert_allclose(loss, losses, rtol=1e-9)
        np.testing.assert_allclose(norm, norms, rtol=1e-9)
        assert full.keys() == parameters.keys()
        for name, expected in parameters.items():
            np.testing.assert_allclose(full[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


def name(grid: dict[str, int]) -> str:
    return "x".join(map(str, grid.values()))


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_every_grid_of_four_ranks_equals_serial(pool, grid):
    check(pool.run("tests.runtime.auto.own:train", 4, grid=grid), cut=grid["data"] < 4)


def test_a_grid_with_every_cut_equals_serial(pool):
    check(pool.run("tests.runtime.auto.own:train", 8, grid=EIGHT, recompute="saved"))


@pytest.mark.parametrize("variant", quick(VARIANTS, "recompute"))
@pytest.mark.parametrize("grid", [FULL, {**EIGHT, "z": 4, "y": 1, "x": 1}], ids=name)
def test_every_option_equals_serial(pool, grid, variant):
    check(pool.run("tests.runtime.auto.own:train", 4, grid=grid, **VARIANTS[variant]))
