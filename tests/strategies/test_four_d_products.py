"""Blocks that keep products, or what attention gives: what is computed again, and what is held."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.strategies.test_four_d_beyond import (
    ACROSS,
    ATTENTION,
    DIVIDED,
    FLAT,
    HALVES,
    MODEL,
    PRODUCTS,
    flops,
    grids,
    job,
    moved,
)
from twin.cost.memory import advice, memory_use
from twin.schedule.ops import Compute
from twin.strategies import load_job
from twin.strategies.four_d.step import generate
from twin.trace.metrics import hardware_flops


def test_what_does_not_fit_is_advised_to_keep_less() -> None:
    raw = {"model": "gpt-20b", "machine": "perlmutter", "ranks": 16, "grid": {"data": 1, "z": 16, "y": 1, "x": 1}}
    found = load_job({**raw, "batch": {"sequences": 32, "micro_sequences": 1}, **PRODUCTS})
    kinds = ("nothing", "attention")
    uses = {kind: memory_use(found.model_copy(update={"recompute_keeps": kind})).fits for kind in kinds}
    most = "attention" if uses["attention"] else "nothing"
    assert uses["nothing"]
    assert advice(found, memory_use(found)).endswith(f"; recompute_keeps: {most} would fit")


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


@grids
@pytest.mark.parametrize("more", [{}, {**HALVES, **ACROSS}, DIVIDED, FLAT], ids=["", "halves", "divided", "flat"])
def test_where_attention_is_kept_two_linears_run_again_and_nothing_is_summed_over_y(
    grid: dict[str, int], more: dict[str, Any]
) -> None:
    kept, whole, lean = (
        job(grid, recompute=recompute, **more, **options)
        for recompute, options in ((True, ATTENTION), (True, {}), (False, {}))
    )
    again = Counter(
        op.name.rsplit("/", 2)[-2] if op.name.endswith("gemm") else op.name.rsplit("/", 1)[-1]
        for _, op in generate(kept).named()
        if isinstance(op, Compute) and op.phase == "recompute"
    )
    per_kind = kept.micro_steps * MODEL["layers"] * (2 if kept.overlap.halves else 1)
    wanted = {"normalize": 2, "qkv": 1, "mlp_up": 1, "gelu": 1, "residual1": 1}
    assert {name: again[name] for name in wanted} == {name: many * per_kind for name, many in wanted.items()}
    assert not {"attention", "projection", "mlp_down", "residual2"} & set(again)
    # of the 24 m·h² flops of a block's products and attention 14 m·h² are done again
    tokens, hidden = kept.batch.sequences * MODEL["sequence"], MODEL["hidden"]
    assert (flops(kept) - flops(lean)) * kept.ranks == 2 * tokens * 7 * hidden**2 * MODEL["layers"]
    assert hardware_flops(kept) - hardware_flops(lean) == 2 * tokens * 7 * hidden**2 * MODEL["layers"]
    assert hardware_flops(lean) < hardware_flops(kept) < hardware_flops(whole)
    twice = {key: size for key, size in (moved(kept) - moved(lean)).items() if size}
    assert not [key for key in twice if key[0] in ("y", "data") or key == ("z_scatter", "reduce_scatter")]


def test_attention_kept_takes_what_it_and_its_projection_give() -> None:
    grid = {"data": 1, "z": 2, "y": 2, "x": 2}
    kept, whole = (job(grid, recompute=True, **options) for options in (ATTENTION, {}))
    tokens, hidden, bf16, fp32 = 4 * MODEL["sequence"], MODEL["hidden"], 2, 4
    # of a block: attention over y, with a sum for each row of a head, and the projection over x
    attended = tokens * (bf16 * hidden // 2 + fp32 * MODEL["heads"] // 2)
    projected = bf16 * tokens * hidden // 2
    held = [memory_use(each).by_category["activations"] for each in (whole, kept)]
    # the block that runs again has its own at hand
    assert held[1] - held[0] == (MODEL["layers"] - 1) * (attended + projected)
