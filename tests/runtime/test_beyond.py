"""Options of 4D beyond the published algorithm train exactly as the serial model does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from runtime.recorder.gpt import batch_of
from runtime.recorder.world import fake_world
from runtime.strategies import ranks_of, trains
from tests.profiles import part
from tests.runtime import equal, parity
from tests.tiers import quick
from twin.description.train import Adam
from twin.strategies.four_d.grid import AXES, factorizations

GRIDS = [dict(zip(AXES, grid.sizes, strict=True)) for n in (1, 2, 4, 8) for grid in factorizations(n)]
WITH_ALL_REDUCES = [grid for grid in GRIDS if grid["x"] * grid["y"] > 1]
HALVES: dict[str, Any] = {"overlap": {"halves": True}}
BOTH: dict[str, Any] = {"overlap": {"halves": True, "across_blocks": True}}
LLAMA = {**parity.MODEL, "activation": "swiglu", "positions": "rotary", "norm": "rms", "biases": False}
PRODUCTS: dict[str, Any] = {"recompute": True, "recompute_keeps": "products"}
EARLY: dict[str, Any] = {"recompute": True, "recompute_stops_early": True}
ATTENTION: dict[str, Any] = {"recompute": True, "recompute_keeps": "attention", "attention": "flash"}
OF_HALVES: dict[str, dict[str, Any]] = {
    "halves": HALVES,
    "recompute": {**HALVES, "recompute": True},
    "across_blocks": {**BOTH, "recompute": True},
    "across_blocks_kept": BOTH,
    "one_layer_recomputed": {**BOTH, "recompute": True, "recompute_layers": 1},
    "no_overlap": {"overlap": {"halves": True, "all_reduce": False, "reduce_scatter": False, "all_gather": False}},
    "deep_prefetch": {"overlap": {"halves": True, "prefetch_depth": 3}},
    "cached": {**BOTH, "cache_gathered_layers": 1, "recompute": True},
    "block_gathers": {**HALVES, "gather_unit": "block"},
    "one_micro_step": {**HALVES, "micro_steps": 1},
    "overlapped_data": {**HALVES, "data_reduction": {"mode": "overlapped", "bucket": "16 KiB"}},
    "sharded_optimizer": {**HALVES, "data_reduction": {"mode": "sharded"}},
    "goldfish": {**HALVES, "goldfish": True},
    "plain_attention": {**HALVES, "attention": "plain"},
    "llama": {**HALVES, "model": LLAMA, "recompute": True},
    "parallel": {**HALVES, "model": {**LLAMA, "residual": "parallel"}},
    "odd_vocabulary": {**HALVES, "model": {**parity.MODEL, "vocabulary": 37}},
    "documents": {**HALVES, "document_mask": True},
    "tied": {**HALVES, "model": {**parity.MODEL, "tied_embeddings": True}},
    "fused": {**HALVES, "fused_elementwise": True},
    "products_kept": {**BOTH, **PRODUCTS},
    "products_kept_llama": {**HALVES, **PRODUCTS, "model": LLAMA, "micro_steps": 1},
    "stops_early": {**BOTH, **EARLY},
    "stops_early_llama": {**HALVES, **EARLY, "model": LLAMA, "recompute_layers": 1},
    "attention_kept": {**BOTH, **ATTENTION},
    "attention_kept_llama": {**HALVES, **ATTENTION, "model": LLAMA, "recompute_layers": 1},
}
OTHERS: dict[str, dict[str, Any]] = {
    "across_blocks": {"overlap": {"across_blocks": True}},
    "across_blocks_recomputed": {"overlap": {"across_blocks": True}, "recompute": True},
    "across_blocks_no_overlap": {"overlap": {"across_blocks": True, "all_gather": False}, "recompute": True},
    "across_blocks_deep": {"overlap": {"across_blocks": True, "prefetch_depth": 6}, "gather_unit": "linear"},
    "across_blocks_of_blocks": {"overlap": {"across_blocks": True}, "gather_unit": "block", "recompute": True},
    "one_layer_recomputed": {"recompute": True, "recompute_layers": 1},
    "one_layer_recomputed_across": {
        "recompute": True,
        "recompute_layers": 1,
        "overlap": {"across_blocks": True},
        "cache_gathered_layers": 1,
    },
    "products_kept": PRODUCTS,
    "products_of_one_layer": {**PRODUCTS, "recompute_layers": 1, "overlap": {"across_blocks": True}},
    "products_kept_llama": {**PRODUCTS, "model": {**LLAMA, "residual": "parallel"}, "gather_unit": "block"},
    "products_kept_fused": {**PRODUCTS, "fused_elementwise": True, "overlap": {"all_reduce": False}},
    "stops_early": EARLY,
    "stops_early_of_one_layer": {**EARLY, "recompute_layers": 1, "overlap": {"across_blocks": True}},
    "stops_early_llama": {**EARLY, "model": {**LLAMA, "residual": "parallel"}, "gather_unit": "block"},
    "stops_early_documents": {**EARLY, "document_mask": True, "model": LLAMA},
    "stops_early_fused": {**EARLY, "fused_elementwise": True, "overlap": {"all_reduce": False}},
    "attention_kept": ATTENTION,
    "attention_of_one_layer": {**ATTENTION, "recompute_layers": 1, "overlap": {"across_blocks": True}},
    "attention_kept_llama": {**ATTENTION, "model": {**LLAMA, "residual": "parallel"}, "gather_unit": "block"},
    "attention_kept_documents": {**ATTENTION, "document_mask": True, "model": LLAMA},
    "attention_kept_fused": {**ATTENTION, "fused_elementwise": True, "overlap": {"all_reduce": False}},
}
DIVIDED: dict[str, Any] = {"divide": {"attention": True, "mlp": True}}
FLAT: dict[str, Any] = {"tensor": "1d"}
OF_DIVIDED: dict[str, dict[str, Any]] = {
    "divided": DIVIDED,
    "divided_recomputed": {**DIVIDED, "recompute": True, "gather_unit": "block"},
    "divided_activation": {"divide": {"mlp": True}, "fused_elementwise": True},
    "divided_products_kept": {**DIVIDED, **PRODUCTS},
    "divided_stops_early": {**DIVIDED, **EARLY},
    "divided_attention_kept": {**DIVIDED, **ATTENTION},
    "divided_heads_attention_kept": {"divide": {"attention": True}, **ATTENTION, "model": LLAMA},
    "divided_heads": {"divide": {"attention": True}},
    "divided_heads_llama": {"divide": {"attention": True}, "model": LLAMA},
    "divided_heads_plain": {"divide": {"attention": True}, "attention": "plain"},
    "divided_no_overlap": {**DIVIDED, "overlap": {"all_reduce": False}},
    "divided_llama": {**DIVIDED, "model": LLAMA, "recompute": True},
    "divided_parallel": {**DIVIDED, "model": {**LLAMA, "residual": "parallel"}},
    "divided_grouped": {**DIVIDED, "model": {**LLAMA, "kv_heads": 8, "heads": 16}},
    "divided_documents": {**DIVIDED, "document_mask": True, "model": LLAMA},
    "flat": FLAT,
    "flat_recomputed": {**FLAT, "recompute": True, "gather_unit": "block"},
    "flat_products_kept": {**FLAT, **PRODUCTS, "model": LLAMA},
    "flat_stops_early": {**FLAT, **EARLY, "model": LLAMA},
    "flat_attention_kept": {**FLAT, **ATTENTION, "model": LLAMA},
    "flat_halves_attention_kept": {**FLAT, **BOTH, **ATTENTION},
    "flat_fused": {**FLAT, "fused_elementwise": True},
    "flat_plain": {**FLAT, "attention": "plain"},
    "flat_no_overlap": {**FLAT, "overlap": {"all_reduce": False}},
    "flat_llama": {**FLAT, "model": LLAMA, "recompute": True},
    "flat_parallel": {**FLAT, "model": {**LLAMA, "residual": "parallel"}},
    "flat_grouped": {**FLAT, "model": {**LLAMA, "kv_heads": 8, "heads": 16}},
    "flat_documents": {**FLAT, "document_mask": True, "model": LLAMA},
    "flat_sharded": {**FLAT, "data_reduction": {"mode": "sharded"}, "recompute": True},
    "flat_tied": {**FLAT, "model": {**parity.MODEL, "tied_embeddings": True}},
    "flat_halves": {**FLAT, **BOTH, "recompute": True},
    "flat_halves_products_kept": {**FLAT, **BOTH, **PRODUCTS},
    "divided_halves_products_kept": {**DIVIDED, **BOTH, **PRODUCTS},
    "divided_halves": {**DIVIDED, **BOTH, "micro_steps": 1},
    "divided_halves_heads": {**DIVIDED, **HALVES, "recompute": True},
}
LOSSES: dict[str, dict[str, Any]] = {
    "loss_by_tokens": {"loss_rows": 5},
    "loss_by_tokens_padded": {"loss_rows": 3, "model": {**parity.MODEL, "vocabulary": 37}},
    "loss_by_tokens_goldfish": {"loss_rows": 1000, "goldfish": True},
    "loss_by_tokens_of_halves": {"loss_rows": 4, **HALVES, "model": {**parity.MODEL, "vocabulary": 9}},
}
"""Nine tokens over eight ranks of y leave some of these none."""
VARIANTS = {**{f"halves_{name}": options for name, options in OF_HALVES.items()}, **OTHERS}
CASES = [
    *((grid, name) for grid in WITH_ALL_REDUCES for name in VARIANTS if name not in OTHERS),
    *((grid, name) for grid in GRIDS for name in OTHERS),
]
OVER_X = [grid for grid in GRIDS if grid["x"] > 1]
"""Grids on which what lies between linears can be divided."""


def _divided(grid: dict[str, int], name: str) -> dict[str, Any]:
    """The options of a case: where heads are to be divided, so few sequences at a time that they do not divide by x."""
    options = OF_DIVIDED[name]
    if "heads" not in name:
        return options
    at_once = 2 if "halves" in name else 1
    return {**options, "micro_steps": parity.SEQUENCES // (grid["data"] * grid["z"] * at_once)}


DIVIDED_ONCE = [(OVER_X[i % len(OVER_X)], name) for i, name in enumerate(OF_DIVIDED)]


def _once() -> list[tuple[dict[str, int], str]]:
    """Every option and every grid at least once."""
    of_halves = [name for name in VARIANTS if name not in OTHERS]
    found = [(WITH_ALL_REDUCES[i % len(WITH_ALL_REDUCES)], name) for i, name in enumerate(of_halves, 3)]
    missing = [grid for grid in GRIDS if grid not in [one for one, _ in found]]
    grids, names = [*missing, *GRIDS], list(OTHERS)
    return found + [(grids[i % len(grids)], names[i % len(names)]) for i in range(max(len(missing), len(names)))]


ONCE = _once()
QUICK = [
    ({"data": 1, "z": 2, "y": 2, "x": 1}, "halves_across_blocks"),
    ({"data": 1, "z": 2, "y": 1, "x": 2}, "halves_one_layer_recomputed"),
    ({"data": 1, "z": 2, "y": 1, "x": 1}, "across_blocks_recomputed"),
    ({"data": 1, "z": 1, "y": 2, "x": 2}, "products_kept"),
]


def named(case: Any) -> str:
    return "x".join(map(str, case.values())) if isinstance(case, dict) else str(case)


@pytest.mark.quick
@pytest.mark.parametrize(("grid", "variant"), QUICK, ids=named)
def test_the_new_options_equal_the_serial_model(pool, grid, variant):
    equal.check(pool, grid, VARIANTS[variant], "float64")


@pytest.mark.parametrize(("grid", "variant"), ONCE, ids=named)
def test_every_option_and_every_grid_equal_the_serial_model(pool, grid, variant):
    equal.check(pool, grid, VARIANTS[variant], "float64", 3)


def test_every_grid_is_among_them():
    assert {str(grid) for grid, _ in ONCE} == {str(grid) for grid in GRIDS}
    assert {variant for _, variant in ONCE} == set(VARIANTS)


@pytest.mark.parametrize(
    "name",
    quick(["divided", "divided_heads_llama", "divided_halves", "flat_llama"], "divided_heads_llama", "flat_llama"),
)
def test_what_is_divided_equals_the_serial_model(pool, name):
    grid = {"data": 1, "z": 1, "y": 2, "x": 2}
    few = 2 if "heads" in name else 3  # where heads are divided a step has sixteen micro-steps
    equal.check(pool, grid, _divided(grid, name), "float64", len(part(range(parity.STEPS), few)))


@pytest.mark.parametrize(("grid", "name"), DIVIDED_ONCE, ids=named)
def test_every_way_to_divide_equals_the_serial_model(pool, grid, name):
    equal.check(pool, grid, _divided(grid, name), "float64", 2)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("grid", [{"data": 1, "z": 2, "y": 2, "x": 2}, {"data": 1, "z": 1, "y": 8, "x": 1}], ids=named)
def test_a_loss_by_tokens_equals_that_of_all(pool, grid, name):
    equal.check(pool, grid, LOSSES[name], "float64", 3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(equal.TOLERANCE))
@pytest.mark.parametrize(("grid", "name"), [(grid, name) for grid in OVER_X for name in OF_DIVIDED], ids=named)
def test_every_way_to_divide_on_every_grid_equals_the_serial_model(pool, grid, name, dtype):
    equal.check(pool, grid, _divided(grid, name), dtype, 2)


@pytest.mark.parametrize(("how", "heads"), [(DIVIDED, False), (DIVIDED, True), (FLAT, True)])
def test_what_is_divided_drops_what_the_whole_drops(pool, how, heads):
    """Masks of scores and of the residual stream are by place in the global order, whoever attends."""
    grid = {"data": 1, "z": 2, "y": 2, "x": 2}
    options: dict[str, Any] = {"dropout": 0.2, "attention": "plain", "micro_steps": 8 if heads else 2}
    found = [
        pool.run("tests.runtime.parity:run", 8, grid=grid, dtype="float64", steps=3, **options, **divided)
        for divided in ({}, how)
    ]
    for whole, parts in zip(*found, strict=True):
        np.testing.assert_allclose(parts[0], whole[0], rtol=1e-9)
        np.testing.assert_allclose(parts[1], whole[1], rtol=1e-9)


@pytest.mark.parametrize("more", [{}, {"recompute": True, "attention": "plain", "fused_elementwise": True}])
def test_halves_drop_what_the_whole_drops(pool, more):
    """Masks are by place in the global order: of the second half those of its own sequences."""
    grid = {"data": 1, "z": 2, "y": 2, "x": 2}
    found = [
        pool.run("tests.runtime.parity:run", 8, grid=grid, dtype="float64", steps=3, dropout=0.2, **more, **halves)
        for halves in ({}, HALVES)
    ]
    for whole, half in zip(*found, strict=True):
        np.testing.assert_allclose(half[0], whole[0], rtol=1e-9)
        np.testing.assert_allclose(half[1], whole[1], rtol=1e-9)


def test_a_failure_in_a_half_is_told_and_leaves_nothing_behind(monkeypatch):
    job = parity.describe({"data": 1, "z": 2, "y": 2, "x": 1}, **HALVES)
    with fake_world(ranks_of(job), 0) as mesh:
        trainee = trains(job)(job, mesh, torch.device("meta"), Adam(), initialised=False)
        context, head = trainee.context, trainee.model.head
        whole = head.compute_backward

        def fail(*arguments, **options):
            if context.half == 1:
                raise RuntimeError("a product fails")
            return whole(*arguments, **options)

        monkeypatch.setattr(head, "compute_backward", fail)
        with pytest.raises(RuntimeError, match="a product fails"):
            trainee.step(batch_of(job, context), 1e-3)
        assert context.half is None
        assert context.ops.half is None
        assert context.ops.pause is None
        assert context.ops.forward_phase == "fwd"
        monkeypatch.undo()
        trainee.step(batch_of(job, context), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(equal.TOLERANCE))
@pytest.mark.parametrize(("grid", "variant"), random.Random(20261124).sample(CASES, 200), ids=named)
def test_a_sample_of_all_equals_the_serial_model(pool, grid, variant, dtype):
    equal.check(pool, grid, VARIANTS[variant], dtype, 2)
