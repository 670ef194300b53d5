"""Every grid trains exactly as the serial model does: losses, gradient norms, all parameters."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.runtime import equal, parity
from tests.tiers import quick
from twin.strategies.four_d.grid import AXES, factorizations

GRIDS = [dict(zip(AXES, grid.sizes, strict=True)) for n in (1, 2, 4, 8) for grid in factorizations(n)]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recompute": {"recompute": True},
    "no_overlap": {"overlap": {"all_reduce": False, "reduce_scatter": False, "all_gather": False}},
    "no_oar": {"overlap": {"all_reduce": False}},
    "no_ors": {"overlap": {"reduce_scatter": False}},
    "no_oag": {"overlap": {"all_gather": False}, "recompute": True},
    "deep_prefetch": {"overlap": {"prefetch_depth": 3}},
    "cached": {"cache_gathered_layers": 1, "recompute": True},
    "cached_kept": {"cache_gathered_layers": 2},
    "block_gathers": {"gather_unit": "block"},
    "block_gathers_recompute": {"gather_unit": "block", "recompute": True, "cache_gathered_layers": 1},
    "one_micro_step": {"micro_steps": 1},
    "overlapped_data": {"data_reduction": {"mode": "overlapped", "bucket": "16 KiB"}},
    "sharded_optimizer": {"data_reduction": {"mode": "sharded"}},
    "sharded_recompute": {"data_reduction": {"mode": "sharded"}, "recompute": True},
    "goldfish": {"goldfish": True},
    "plain_attention": {"attention": "plain"},
    "no_biases": {"model": {**parity.MODEL, "biases": False}},
    "llama": {"model": {**parity.MODEL, "activation": "swiglu", "positions": "rotary", "biases": False}},
    "odd_vocabulary": {"model": {**parity.MODEL, "vocabulary": 37}},
    "no_clip": {"clip_gradients": False},
    "one_in_flight": {"overlap": {"scatters_in_flight": 1}},
    "fused": {"fused_elementwise": True},
    "fused_llama": {"fused_elementwise": True, "recompute": True, "model": {**parity.MODEL, "activation": "swiglu"}},
}
FEWER_STEPS = {"float64": 3, "float32": 2}
"""Of the 1,600 cases of `make test-all` alone: moments, their correction and kept gathers are carried on."""
CASES = list(itertools.product(GRIDS, VARIANTS, equal.TOLERANCE))
# the head's 37 × 20 weight does not divide by z = 8, nor its half by z = 4: shards are padded
VARIANTS["padded"] = {"model": {**parity.MODEL, "vocabulary": 37, "hidden": 20, "heads": 4}}
PADDED = [{"data": 1, "z": 8, "y": 1, "x": 1}, {"data": 1, "z": 4, "y": 1, "x": 2}]
NAMES = [name for name in VARIANTS if name != "padded"]
SAMPLE = [
    *((grid, NAMES[i % len(NAMES)], "float64") for i, grid in enumerate(GRIDS)),  # every grid, every option
    *random.Random(20261120).sample(CASES, 13),
]
EACH_ONCE = {
    (
        ("data", 2),
        ("z", 2),
    ): "plain overlapped_data sharded_optimizer sharded_recompute one_micro_step no_clip goldfish",
    (("z", 2), ("x", 2)): "no_overlap no_ors one_in_flight deep_prefetch cached block_gathers fused odd_vocabulary",
    (("z", 2), ("y", 2)): "no_oag cached_kept block_gathers_recompute llama fused_llama",
    (("y", 2), ("x", 2)): "no_oar plain_attention no_biases",
    (("data", 2), ("y", 2), ("x", 2)): "recompute",
}
"""Every option, on a grid whose axes it has to do with."""
ONCE = [(dict.fromkeys(AXES, 1) | dict(grid), v) for grid, variants in EACH_ONCE.items() for v in variants.split()]
OTHERS = [case for case in CASES if case not in SAMPLE and case not in [(*once, "float64") for once in ONCE]]
"""All that is left of every grid with every option."""


def check(pool: Any, grid: dict[str, int], variant: str, dtype: str, steps: int = equal.STEPS) -> None:
    equal.check(pool, grid, VARIANTS[variant], dtype, steps)


def name(case: Any) -> str:
    return "x".join(map(str, case.values())) if isinstance(case, dict) else str(case)


@pytest.mark.parametrize(("grid", "variant"), quick(ONCE, *ONCE[::3]), ids=name)
def test_every_axis_and_every_option_once_equals_the_serial_model(pool, grid, variant):
    check(pool, grid, variant, "float64")


def test_every_option_is_among_them():
    assert sorted(variant for _, variant in ONCE) == sorted(NAMES)
    assert len(OTHERS) + len(ONCE) + len({str(case) for case in SAMPLE}) >= len(CASES)
    assert {axis for grid in EACH_ONCE for axis, _ in grid} == set(AXES)


@pytest.mark.parametrize(("grid", "variant", "dtype"), SAMPLE, ids=name)
def test_a_sample_of_grids_and_options_equals_the_serial_model(pool, grid, variant, dtype):
    check(pool, grid, variant, dtype)


@pytest.mark.parametrize("grid", PADDED, ids=name)
def test_weights_that_do_not_divide_over_z(pool, grid):
    check(pool, grid, "padded", "float64")


@pytest.mark.parametrize("variant", ["fused", "fused_llama"])
def test_biases_that_the_next_op_adds(pool, variant):
    """Where a product is summed over x or y, `fused_elementwise` leaves its bias to what follows."""
    check(pool, {"data": 1, "z": 2, "y": 2, "x": 2}, variant, "float64")


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "variant", "dtype"), OTHERS, ids=name)
def test_every_grid_and_option_equals_the_serial_model(pool, grid, variant, dtype):
    check(pool, grid, variant, dtype, FEWER_STEPS[dtype])
