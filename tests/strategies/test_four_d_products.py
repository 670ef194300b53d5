"""Blocks that keep products: what is computed again, and what is held."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.strategies.test_four_d_beyond import ACROSS, DIVIDED, FLAT, HALVES, MODEL, PRODUCTS, flops, grids, job, moved
from twin.cost.memory import advice, memory_use
from twin.schedule.ops import Compute
from twin.strategies import load_job
from twin.strategies.four_d.step import generate
from twin.trace.metrics import hardware_flops


def test_what_does_not_fit_is_advised_to_keep_less() -> None:
    raw = {"model": "gpt-20b", "machine": "perlmutter", "ranks": 16, "grid": {"data": 1, "z": 16, "y": 1, "x": 1}}
    found = load_job({**raw, "batch": {"sequences": 32, "micro_sequences": 1}, **PRODUCTS})
    assert advice(found, memory_use(found)).endswith("; recompute_keeps: nothing would fit")


KEPT: list[tuple[bool, dict[str, Any]]] = [(True, PRODUCTS), (False, {})]


@grids
@pytest.mark.parametrize("more", [{}, {**HALVES, **ACROSS}, DIVIDED, FLAT], ids=["", "halves", "divided", "flat"])
def test_where_products_are_kept_norms_and_activations_alone_are_computed_again(
    grid: dict[str, int], more: dict[str, Any]
) -> None:
    lean, whole = (job(grid, recompute=recompute, **more, **options) for recompute, options in KEPT)
    again = [op for _, op in generate(lean).named() if isinstance(op, Compute) and op.phase == "recompute"]
    names = Counter(op.name.rsplit("/", 1)[-1] for op in again)
    per_kind = lean.micro_steps * MODEL["layers"] * (2 if lean.overlap.halves else 1)
    assert (names["normalize"], names["gelu"]) == (2 * per_kind, per_kind)
    assert set(names) <= {"normalize", "gelu", "sort"}  # the last of columns that travel
    assert flops(lean) == flops(whole)
    assert hardware_flops(lean) == hardware_flops(whole)
    # no sum over ranks is made twice; what was divided over x is gathered twice
    twice = {key: size for key, size in (moved(lean) - moved(whole)).items() if size}
    assert set(twice) <= {("x", "all_gather")}
    assert not moved(whole) - moved(lean)


def test_products_kept_take_what_linears_and_attention_give() -> None:
    grid = {"data": 1, "z": 2, "y": 2, "x": 2}
    lean, whole = (job(grid, recompute=recompute, **options) for recompute, options in KEPT)
    tokens, hidden, bf16 = 4 * MODEL["sequence"], MODEL["hidden"], 2
    # of a block: two outputs of norms over x, one of the activation over y
    less = MODEL["layers"] * bf16 * tokens * (2 * hidden // 2 + 4 * hidden // 2)
    held = [memory_use(each).by_category["activations"] for each in (whole, lean)]
    assert held[0] - held[1] == less
    others = [memory_use(each).per_rank_bytes for each in (whole, lean)]
    assert others[0] - others[1] == less
