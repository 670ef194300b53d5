"""Llama, Qwen, Mistral, GPT-2 and NeoX train on every grid as a serial model in plain PyTorch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime import equal, parity
from tests.tiers import quick
from twin.strategies.four_d.grid import AXES, factorizations

LLAMA = {"activation": "swiglu", "positions": "rotary", "biases": False, "norm": "rms", "norm_epsilon": 1e-6}
NEOX = {"positions": "rotary", "rotary_share": 0.25, "residual": "parallel", "activation": "gelu_exact"}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grouped": ({**LLAMA, "kv_heads": 4}, {"recompute": True}),
    "grouped_plain": ({**LLAMA, "kv_heads": 4}, {"attention": "plain", "gather_unit": "block"}),
    "qwen2": ({**LLAMA, "kv_heads": 4, "biases": "qkv", "tied_embeddings": True, "rotary_base": 1e6}, {}),
    "qwen3": (
        {**LLAMA, "kv_heads": 4, "head_width": 12, "qk_norm": True, "tied_embeddings": True},
        {"recompute": True},
    ),
    "neox": (NEOX, {}),
    "neox_fused": ({**NEOX, "rotary_share": 0.5}, {"recompute": True, "fused_elementwise": True}),
    "gpt2_tied": ({"tied_embeddings": True, "vocabulary": 37, "max_positions": 11}, {}),
    "tied_overlapped": ({"tied_embeddings": True}, {"data_reduction": {"mode": "overlapped", "bucket": "16 KiB"}}),
    "tied_sharded": ({"tied_embeddings": True, "vocabulary": 37}, {"data_reduction": {"mode": "sharded"}}),
    "qk_norm_overlapped": (
        {**LLAMA, "qk_norm": True, "tied_embeddings": True},
        {"data_reduction": {"mode": "overlapped", "bucket": "16 KiB"}, "recompute": True},
    ),
    "scaled": ({**LLAMA, "rotary_scaling": {"kind": "linear", "factor": 4.0}}, {}),
    "llama3": ({**LLAMA, "kv_heads": 4, "rotary_scaling": {"kind": "llama3", "factor": 8.0}}, {}),
    "rms_biased": ({**LLAMA, "biases": True}, {"fused_elementwise": True}),
}
"""Shapes of other families, with options that meet them."""
RAMP = (8192 * 1e-3 / (2 * np.pi) - 1) / 3
"""Place on llama3's ramp of the last of four planes, which turns by 1e-3 a position; the others keep their speed."""
SLOWER = {"scaled": (4.0,) * 4, "llama3": (1.0, 1.0, 1.0, 1 / (RAMP + (1 - RAMP) / 8))}

GRIDS = [dict(zip(AXES, grid.sizes, strict=True)) for grid in factorizations(4)]
EACH_ONCE = {
    (("z", 2), ("y", 2)): "grouped qwen2 qwen3 gpt2_tied",
    (("y", 2), ("x", 2)): "grouped_plain neox llama3 rms_biased",
    (("z", 2), ("x", 2)): "neox_fused scaled",
    (("data", 2), ("z", 2)): "tied_overlapped tied_sharded",
    (("data", 2), ("y", 2)): "qk_norm_overlapped",
}
"""Every family, on a grid whose axes it has to do with."""
ONCE = [(dict.fromkeys(AXES, 1) | dict(grid), name) for grid, names in EACH_ONCE.items() for name in names.split()]
STEPS = 3


def check(pool: Any, grid: dict[str, int], family: str, dtype: str = "float64") -> None:
    shape, options = FAMILIES[family]
    case = {"model": {**parity.MODEL, **shape}, **options}
    equal.check(pool, grid, case, dtype, STEPS, SLOWER.get(family))


def name(case: Any) -> str:
    return "x".join(map(str, case.values())) if isinstance(case, dict) else str(case)


@pytest.mark.parametrize(("grid", "family"), quick(ONCE, *ONCE[::3]), ids=name)
def test_every_family_once(pool, grid, family):
    check(pool, grid, family)


def test_every_family_is_among_them():
    assert sorted(family for _, family in ONCE) == sorted(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_every_grid_of_four_ranks(pool, grid, family):
    check(pool, grid, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_single_precision(pool, family):
    check(pool, dict.fromkeys(AXES, 1) | {"z": 2, "x": 2}, family, "float32")
