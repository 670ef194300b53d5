"""FSDP2 trains as the serial model does, sharded over all ranks and HSDP; what it does is what the twin says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime import fsdp_tasks, parity
from tests.runtime.equal import STEPS, TOLERANCE, assemble, serial_of
from tests.runtime.fsdp_tasks import as_four_d, describe
from tests.runtime.test_families import FAMILIES as OF_FOUR_D
from tests.runtime.test_families import SLOWER
from tests.tiers import quick
from twin.description.problems import DescriptionError
from twin.strategies import load_job

ONLY_FSDP = {"reshard_after_forward", "reduce_precision"}
"""Keys that change no number, but for rounding."""
NOT_FSDP = {"gather_unit", "data_reduction", "overlap"}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recompute": {"recompute": True},
    "kept": {"reshard_after_forward": False},
    "kept, recompute": {"reshard_after_forward": False, "recompute": True},
    "one micro-step": {"micro_steps": 1},
    "goldfish": {"goldfish": True},
    "no clip": {"clip_gradients": False},
    "plain attention": {"attention": "plain"},
    "documents": {"document_mask": True, "recompute": True},
    "loss by tokens": {"loss_rows": 5},
    "odd vocabulary": {"model": {**parity.MODEL, "vocabulary": 37}},
    "padded": {"model": {**parity.MODEL, "vocabulary": 37, "hidden": 20, "heads": 4}},
}
FAMILIES = {
    name: {"model": {**parity.MODEL, **shape}, **{k: v for k, v in options.items() if k not in NOT_FSDP}}
    for name, (shape, options) in OF_FOUR_D.items()
    if not name.startswith("tied_")
}
VARIANTS |= FAMILIES
GRIDS: list[dict[str, int]] = [
    {"weights": 1},
    {"weights": 2},
    {"weights": 4},
    {"data": 2, "weights": 2},
    {"weights": 8},
    {"data": 2, "weights": 4},
    {"data": 4, "weights": 2},
]
SHARDED, REPLICATED = GRIDS[2], GRIDS[3]
CASES = [(grid, name) for grid in GRIDS for name in VARIANTS]
CHOSEN = [
    *((SHARDED, name) for name in ("recompute", "padded", "qwen3")),
    *((REPLICATED, name) for name in ("plain", "documents")),
]


def trained(pool: Any, grid: dict[str, int], dtype: str, **options: Any) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Train on a grid; returns the ranks' answers, and the parameters put together."""
    shared = fsdp_tasks.Shared(**grid)
    task = "tests.runtime.fsdp_tasks:run"
    answers = pool.run(task, shared.ranks, grid=as_four_d(grid), shared=grid, dtype=dtype, **options)
    full = assemble([pieces for _, _, pieces in answers])
    if options.get("model", {}).get("tied_embeddings"):
        full["embedding.tokens"] = full["head.weight"]
    return answers, full


@pytest.mark.process
@pytest.mark.parametrize(("grid", "variant"), quick(CASES, *CHOSEN), ids=str)
def test_it_trains_as_the_serial_model_does(pool: Any, grid: dict[str, int], variant: str) -> None:
    options = VARIANTS[variant]
    answers, full = trained(pool, grid, "float64", steps=STEPS, **options)
    alike = {key: value for key, value in options.items() if key not in ONLY_FSDP}
    losses, norms, parameters = serial_of(alike, "float64", STEPS, SLOWER.get(variant))
    for loss, norm, _ in answers:
        np.testing.assert_allclose(loss, losses, rtol=TOLERANCE["float64"])
        np.testing.assert_allclose(norm, norms, rtol=TOLERANCE["float64"])
    assert full.keys() == parameters.keys()
    for name, expected in parameters.items():
        np.testing.assert_allclose(full[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.process
@pytest.mark.parametrize(("grid", "dtype"), [(SHARDED, "float64"), (REPLICATED, "float32")], ids=str)
def test_twenty_steps_have_the_losses_of_the_4d_algorithm(pool: Any, grid: dict[str, int], dtype: str) -> None:
    """With dropout, which is numbers by address: so every strategy drops the same."""
    options = {"dropout": 0.1, "attention": "plain", "recompute": True, "rounds": 4, "dtype": dtype}
    four_d = {"data": 1, "z": 2, "y": 2, "x": 1}
    expected = pool.run("tests.runtime.fsdp_tasks:losses_of_four_d", 4, grid=four_d, **options)[0]
    found = pool.run("tests.runtime.fsdp_tasks:losses", 4, grid=as_four_d(grid), shared=grid, **options)
    assert len(expected) == 20
    for losses in found:
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE[dtype])


@pytest.mark.process
def test_bf16_is_as_near_to_fp32_as_in_4d(pool: Any) -> None:
    """What FSDP2 rounds is what 4D rounds: weights that layers compute with; sums and master weights are fp32."""
    exact = serial_of({}, "float32")[0]
    for precision in ("compute", "fp32"):
        answers, _ = trained(pool, SHARDED, "bfloat16", reduce_precision=precision)
        np.testing.assert_allclose(answers[0][0], exact, rtol=5e-3)
        assert np.abs(np.array(answers[0][0]) - exact).max() > 1e-6


@pytest.mark.parametrize(
    ("grid", "options", "remedy"),
    [
        ({"gradients": 4}, {}, r"grid.gradients = 4.*use grid {weights: 4}.*reshard_after_forward: false"),
        ({"optimizer": 2, "weights": 2}, {}, r"grid.optimizer = 2.*use grid {weights: 4}"),
        ({"data": 4}, {}, r"grid.weights = 1.*strategy: ddp"),
        ({"weights": 4}, {"flavour": "deepspeed", "quantized_weights": True}, r"flavour = 'deepspeed'.*fsdp2"),
        ({"weights": 4}, {"flavour": "deepspeed", "secondary": 2}, r"flavour = 'deepspeed'.*fsdp2"),
        ({"weights": 4}, {"flavour": "fsdp1"}, r"flavour = 'fsdp1'.*fsdp2"),
        ({"weights": 4}, {"separate_reduction_group": False}, r"separate_reduction_group = False.*leave it out"),
        ({"weights": 4}, {"loss_in_place": False}, r"loss_in_place = False.*leave it out"),
        (
            {"weights": 4},
            {"recompute": True, "recompute_stops_early": True},
            r"recompute_stops_early = True.*whole here",
        ),
        ({"weights": 4}, {"accumulate": "whole"}, r"accumulate = 'whole'.*accumulate: sharded"),
    ],
)
def test_what_pytorch_does_not_do_is_simulated_and_not_trained(
    grid: dict[str, int], options: dict[str, Any], remedy: str
) -> None:
    from runtime.strategies import trains
    from twin.engine.simulate import simulate

    job = describe(grid, **options)
    assert simulate(job).step_seconds > 0
    with pytest.raises(DescriptionError, match=remedy):
        trains(job)


def test_auto_chooses_a_grid_that_trains() -> None:
    from runtime.strategies import trains
    from twin.cli import resolve

    job = load_job({**describe(SHARDED).model_dump(mode="json", by_alias=True), "grid": "auto"})
    trains(resolve(job))
