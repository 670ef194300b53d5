"""Replicas that own a part of every bucket train exactly as the serial model does (`sharded_overlapped`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime import equal, parity
from twin.strategies.four_d.grid import AXES

SMALL: dict[str, Any] = {"data_reduction": {"mode": "sharded_overlapped", "bucket": "16 KiB"}}
"""Buckets of one block each in float64, and of one or two in float32."""
WHOLE: dict[str, Any] = {"data_reduction": {"mode": "sharded_overlapped"}}
"""One bucket of all blocks."""
TIED = {**parity.MODEL, "tied_embeddings": True, "vocabulary": 37}
HALVES: dict[str, Any] = {"overlap": {"halves": True, "across_blocks": True}}
VARIANTS: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "whole": WHOLE,
    "recompute": {**SMALL, "recompute": True, "gather_unit": "block", "cache_gathered_layers": 1},
    "no_overlap": {**SMALL, "overlap": {"all_reduce": False, "reduce_scatter": False, "all_gather": False}},
    "deep_prefetch": {**SMALL, "overlap": {"prefetch_depth": 3}},
    "one_micro_step": {**SMALL, "micro_steps": 1},
    "no_clip": {**WHOLE, "clip_gradients": False},
    "goldfish": {**SMALL, "goldfish": True},
    "tied": {**SMALL, "model": TIED},
    "tied_whole": {**WHOLE, "model": TIED, "recompute": True},
    "halves": {**SMALL, **HALVES, "recompute": True},
    "halves_tied": {**SMALL, **HALVES, "model": TIED},
    "flat": {**SMALL, "tensor": "1d"},
    "llama": {
        **SMALL,
        "model": {**parity.MODEL, "activation": "swiglu", "positions": "rotary", "norm": "rms", "biases": False},
    },
}
GRIDS: dict[tuple[tuple[str, int], ...], str] = {
    (("data", 2),): "one_micro_step tied",
    (("data", 4),): "whole tied_whole",
    (("data", 2), ("z", 2)): "small no_overlap deep_prefetch recompute tied",
    (("data", 2), ("z", 2), ("y", 2)): "halves llama",
    (("data", 2), ("y", 2)): "goldfish",
    (("data", 2), ("z", 2), ("x", 2)): "halves_tied flat",
    (("data", 8),): "no_clip",
}
CASES = [(dict.fromkeys(AXES, 1) | dict(grid), name) for grid, names in GRIDS.items() for name in names.split()]
QUICK = [({"data": 2, "z": 2, "y": 1, "x": 1}, "small"), ({"data": 2, "z": 1, "y": 1, "x": 1}, "tied")]


def test_every_variant_is_among_them() -> None:
    assert {variant for _, variant in CASES} == set(VARIANTS)


def name(case: Any) -> str:
    return "x".join(map(str, case.values())) if isinstance(case, dict) else str(case)


@pytest.mark.quick
@pytest.mark.parametrize(("grid", "variant"), QUICK, ids=name)
def test_equals_the_serial_model(pool: Any, grid: dict[str, int], variant: str) -> None:
    equal.check(pool, grid, VARIANTS[variant], "float64", 3)


@pytest.mark.parametrize(("grid", "variant"), [case for case in CASES if case not in QUICK], ids=name)
def test_every_option_equals_the_serial_model(pool: Any, grid: dict[str, int], variant: str) -> None:
    equal.check(pool, grid, VARIANTS[variant], "float64", 3)


@pytest.mark.parametrize("grid", [{"data": 4}, {"data": 2, "z": 2}], ids=str)
@pytest.mark.parametrize("model", [parity.MODEL, TIED], ids=["plain", "tied"])
def test_who_asks_between_two_steps_gets_what_was_updated(pool: Any, grid: dict[str, int], model: Any) -> None:
    """Evaluation and text, against replicas that share it at the end of a step; copies are equal bit for bit."""
    task, sizes = "tests.runtime.sharded_tasks:asked", dict.fromkeys(AXES, 1) | grid
    ahead = pool.run(task, 4, grid=sizes, model=model, **SMALL)
    at_once = pool.run(task, 4, grid=sizes, model=model, data_reduction={"mode": "sharded"})
    for rank, ((loss, text, losses, computed), (other, same, others, expected)) in enumerate(
        zip(ahead, at_once, strict=True)
    ):
        assert loss == pytest.approx(other, rel=1e-12)
        assert text == same
        assert losses == pytest.approx(others, rel=1e-12)
        for mine, theirs, copy in zip(computed, expected, ahead[rank % sizes["z"]][3], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
            np.testing.assert_array_equal(mine, copy)
