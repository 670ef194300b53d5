"""Models of every family answer as Hugging Face's own classes do, on every grid that their heads allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.huggingface.weights import initial_weights
from tests.runtime.huggingface import tasks
from twin.description.huggingface import read_model
from twin.strategies.four_d.grid import AXES, factorizations

HALVES = [tasks.ALONE | {axis: 2} for axis in ("z", "y", "x")]


def allowed(family: str, grid: dict[str, int]) -> bool:
    return read_model(tasks.DATA / family).key_value_heads % grid["y"] == 0


FOURS = [
    (family, grid)
    for grid in (dict(zip(AXES, each.sizes, strict=True)) for each in factorizations(4))
    for family in tasks.FAMILIES
    if allowed(family, grid)
]


def name(case: Any) -> str:
    return "x".join(map(str, case.values())) if isinstance(case, dict) else str(case)


@pytest.mark.parametrize("family", tasks.FAMILIES)
def test_alone(family):
    directory = tasks.DATA / family
    model = tasks.build(f"hf:{directory}")
    initial_weights(f"hf:{directory}", model.context)
    assert tasks.error_of(model, directory / "answer.safetensors") < tasks.TOLERANCE


def check(pool: Any, family: str, grid: dict[str, int]) -> None:
    ranks = int(np.prod(list(grid.values())))
    weights = f"hf:{tasks.DATA / family}"
    errors = pool.run("tests.runtime.huggingface.tasks:check", ranks, grid=grid, family=family, weights=weights)
    assert max(errors) < tasks.TOLERANCE


EACH = [(family, grid) for family in tasks.FAMILIES for grid in HALVES]


@pytest.mark.parametrize(("family", "grid"), EACH, ids=name)
def test_on_each_axis(pool, family, grid):
    check(pool, family, grid)


@pytest.mark.parametrize(("family", "grid"), FOURS, ids=name)
def test_on_every_grid_of_four(pool, family, grid):
    check(pool, family, grid)
