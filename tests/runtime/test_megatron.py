"""PyTorch's own tensor, pipeline and data parallelism train as the serial model does, composed in every way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime import parity
from tests.runtime.equal import STEPS, TOLERANCE, assemble, serial_of
from tests.runtime.megatron_tasks import MODEL, as_four_d, describe
from tests.runtime.test_families import FAMILIES as OF_FOUR_D
from tests.runtime.test_families import SLOWER
from tests.tiers import quick
from twin.description.problems import DescriptionError

ONLY_MEGATRON = {
    *("schedule", "chunks", "stage_layers", "sequence_parallel", "weight_shards", "reshard_after_forward"),
    *("gradient_precision", "micro_steps", "context_exchange"),
}
"""Keys that change no number, but for rounding."""
NOT_MEGATRON = {"gather_unit", "data_reduction", "overlap"}
PARALLEL = {"neox", "neox_fused"}
"""Families whose MLP stands beside attention: not cut over tensor ranks."""
FAMILIES = {
    name: {"model": {**MODEL, **shape}, **{k: v for k, v in options.items() if k not in NOT_MEGATRON}}
    for name, (shape, options) in OF_FOUR_D.items()
    if not name.startswith("tied_") and "qk_norm_" not in name
}
SP = {"sequence_parallel": True}
INTERLEAVED = {"schedule": "interleaved", "chunks": 2}
V = {"schedule": "zb_v", "chunks": 2}
DUAL = {"schedule": "dualpipe_v", "chunks": 2}
PIPELINE, TENSOR, DATA, CONTEXT = {"pipeline": 2}, {"tensor": 2}, {"data": 2}, {"context": 2}
RING, ALL_GATHER, TRADE = ({"context_exchange": way} for way in ("ring", "all_gather", "all_to_all"))
CASES: list[tuple[dict[str, int], dict[str, Any]]] = [
    ({"tensor": 1}, {}),
    (TENSOR, {}),
    *((CONTEXT, exchange) for exchange in (RING, ALL_GATHER)),
    ({"context": 4}, {**RING, "recompute": True}),
    ({"context": 4}, {**ALL_GATHER, "goldfish": True}),
    ({**CONTEXT, **TENSOR}, {**SP, **ALL_GATHER}),
    ({**CONTEXT, **PIPELINE}, {**RING, "schedule": "zb_h1", "recompute": True}),
    ({**CONTEXT, **DATA}, {**RING, "reshard_after_forward": False}),
    ({**CONTEXT, **DATA}, {**ALL_GATHER, "weight_shards": 2}),
    (CONTEXT, TRADE),
    ({"context": 4}, {**TRADE, "recompute": True}),
    ({**CONTEXT, **PIPELINE, **TENSOR}, {**SP, **TRADE, "schedule": "zb_h1"}),
    ({**CONTEXT, **TENSOR}, {**SP, **TRADE, **FAMILIES["llama3"]}),
    ({**CONTEXT, **PIPELINE, **TENSOR}, {**SP, **RING, **V}),
    (TENSOR, {**SP, "recompute": True}),
    (DATA, {"reshard_after_forward": False}),
    (PIPELINE, {}),
    (PIPELINE, {"schedule": "gpipe", "recompute": True}),
    (PIPELINE, {**INTERLEAVED, "recompute": True}),
    (PIPELINE, {"schedule": "zb_h1", "recompute": True}),
    (PIPELINE, V),
    (PIPELINE, {"stage_layers": [1, 3], "micro_steps": 2}),
    ({"pipeline": 4}, {}),
    ({"pipeline": 4}, {"schedule": "zb_h1"}),
    ({"pipeline": 4}, {"schedule": "gpipe", "micro_steps": 2}),
    ({"tensor": 4}, {**SP, "goldfish": True}),
    ({"data": 4}, {"weight_shards": 2, "recompute": True}),
    ({**PIPELINE, **TENSOR}, {**SP, **INTERLEAVED}),
    ({**PIPELINE, **TENSOR}, {**V, "recompute": True}),
    ({**PIPELINE, **TENSOR}, {**SP, "schedule": "zb_h1"}),
    ({**PIPELINE, **DATA}, {}),
    ({**PIPELINE, **DATA}, {"schedule": "gpipe", "recompute": True}),
    ({**PIPELINE, **DATA}, V),
    (PIPELINE, DUAL),
    ({**PIPELINE, **TENSOR}, {**SP, **DUAL}),
    ({**PIPELINE, **DATA}, {**DUAL, "recompute": True}),
    ({**PIPELINE, **DATA}, {**INTERLEAVED, "goldfish": True}),
    ({**PIPELINE, **DATA}, {"schedule": "zb_h1", "micro_steps": 2}),
    ({**DATA, **TENSOR}, {**SP, "recompute": True}),
    ({**DATA, **TENSOR}, {"model": {**MODEL, "vocabulary": 37}}),
    ({**PIPELINE, **DATA, **TENSOR}, {**SP, "recompute": True}),
    ({**PIPELINE, **DATA, **TENSOR}, V),
    ({**PIPELINE, **DATA, **TENSOR}, {**INTERLEAVED, "model": {**MODEL, "vocabulary": 37}}),
    ({**PIPELINE, "data": 4}, {"weight_shards": 2}),
    ({"pipeline": 4, **TENSOR}, {**SP, "schedule": "zb_h1"}),
    ({"data": 4, **TENSOR}, {**SP, "weight_shards": 2}),
    ({"pipeline": 4, **DATA}, {"clip_gradients": False}),
    *(({**PIPELINE, **TENSOR}, {**SP, **FAMILIES[name]}) for name in ("llama3", "grouped", "rms_biased")),
    *(({"tensor": 4}, {**SP, **FAMILIES[name]}) for name in ("qwen3", "gpt2_tied", "qwen2")),
    *(({**CONTEXT, **TENSOR}, {**SP, **RING, **FAMILIES[name]}) for name in ("llama3", "rms_biased")),
    ({"context": 4}, {**ALL_GATHER, **FAMILIES["llama3"]}),
    (
        {**DATA, **TENSOR},
        {**SP, **FAMILIES["qwen3"], "model": {**FAMILIES["qwen3"]["model"], "tied_embeddings": False}},
    ),
    *(({**PIPELINE, **DATA}, FAMILIES[name]) for name in ("neox", "scaled")),
    ({"tensor": 4}, {**SP, "loss_rows": 5, "model": {**MODEL, "vocabulary": 37}}),
    (PIPELINE, {"loss_rows": 5}),
    ({**PIPELINE, **DATA}, {**V, "loss_rows": 5}),
    (CONTEXT, {**RING, "loss_rows": 3}),
]
CHOSEN = [CASES[i] for i in (1, 6, 15, 27, 32)]


def trained(
    pool: Any, axes: dict[str, int], dtype: str, steps: int = parity.STEPS, **options: Any
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Train on a grid; returns the ranks' answers, and the parameters put together."""
    job = describe(axes, **{key: value for key, value in options.items() if key != "goldfish"})
    task = "tests.runtime.megatron_tasks:run"
    answers = pool.run(task, job.ranks, grid=as_four_d(job), axes=axes, dtype=dtype, steps=steps, **options)
    names = sorted(set().union(*(pieces for _, _, pieces in answers)))
    full = assemble([{name: pieces.get(name, []) for name in names} for _, _, pieces in answers])
    if options.get("model", {}).get("tied_embeddings"):
        full["embedding.tokens"] = full["head.weight"]
    return answers, full


@pytest.mark.process
@pytest.mark.parametrize(("axes", "options"), quick(CASES, *CHOSEN), ids=str)
def test_it_trains_as_the_serial_model_does(pool: Any, axes: dict[str, int], options: dict[str, Any]) -> None:
    answers, full = trained(pool, axes, "float64", STEPS, **options)
    alike = {key: value for key, value in options.items() if key not in ONLY_MEGATRON}
    alike.setdefault("model", MODEL)
    slower = next((SLOWER[name] for name in SLOWER if FAMILIES[name]["model"] == alike["model"]), None)
    losses, norms, parameters = serial_of(alike, "float64", STEPS, slower)
    for loss, norm, _ in answers:
        np.testing.assert_allclose(loss, losses, rtol=TOLERANCE["float64"])
        np.testing.assert_allclose(norm, norms, rtol=TOLERANCE["float64"])
    assert full.keys() == parameters.keys()
    for name, expected in parameters.items():
        np.testing.assert_allclose(full[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.process
@pytest.mark.parametrize(
    ("axes", "options", "dtype"),
    [
        ({**PIPELINE, **TENSOR}, SP, "float64"),
        ({**PIPELINE, **DATA}, V, "float32"),
        ({**DATA, **TENSOR}, {**SP, "micro_steps": 2}, "float32"),
        ({**CONTEXT, **TENSOR}, {**SP, **RING}, "float64"),
        ({**CONTEXT, **PIPELINE}, ALL_GATHER, "float32"),
    ],
    ids=str,
)
def test_twenty_steps_have_the_losses_of_the_4d_algorithm(
    pool: Any, axes: dict[str, int], options: dict[str, Any], dtype: str
) -> None:
    """With dropout, which is numbers by address: so every strategy drops the same."""
    attention = "flash" if "context" in axes else "plain"  # whose scores are dropped too
    alike = {"dropout": 0.1, "attention": attention, "recompute": True, "model": MODEL}
    rounds = {"rounds": 4, "dtype": dtype}
    four_d = {"data": 1, "z": 2, "y": 2, "x": 1}
    expected = pool.run("tests.runtime.fsdp_tasks:losses_of_four_d", 4, grid=four_d, **alike, **rounds)[0]
    job = describe(axes, **alike, **options)
    task = "tests.runtime.megatron_tasks:losses"
    found = pool.run(task, job.ranks, grid=as_four_d(job), axes=axes, **alike, **options, **rounds)
    assert len(expected) == 20
    for losses in found:
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE[dtype])


@pytest.mark.process
def test_bf16_is_as_near_to_fp32_as_in_4d(pool: Any) -> None:
    """Sums over micro-steps and ranks are fp32, or of 16 bits where the job says so."""
    exact = serial_of({"model": MODEL}, "float32")[0]
    for axes, precision in (({**PIPELINE, **DATA}, "compute"), ({**PIPELINE, **DATA}, "fp32"), (CONTEXT, "fp32")):
        answers, _ = trained(pool, axes, "bfloat16", gradient_precision=precision)
        np.testing.assert_allclose(answers[0][0], exact, rtol=5e-3)
        assert np.abs(np.array(answers[0][0]) - exact).max() > 1e-6


@pytest.mark.process
@pytest.mark.parametrize(
    ("axes", "options"),
    [({**PIPELINE, **TENSOR}, {**SP, **INTERLEAVED}), ({**DATA, **TENSOR}, SP), ({**CONTEXT, **DATA}, RING)],
    ids=str,
)
def test_forward_passes_alone_see_what_training_sees(pool: Any, axes: dict[str, int], options: dict[str, Any]) -> None:
    """Losses on held-out text and the next token's logits, also of lengths that ranks cannot share."""
    job = describe(axes, **options)
    task = "tests.runtime.megatron_tasks:asked"
    found = pool.run(task, job.ranks, grid=as_four_d(job), axes=axes, **options)
    alone = pool.run(task, 1, grid=dict.fromkeys(("data", "z", "y", "x"), 1), axes={"tensor": 1})[0]
    for loss, logits in found:
        np.testing.assert_allclose(loss, alone[0], rtol=1e-9)
        np.testing.assert_allclose(logits, alone[1], rtol=1e-5, atol=1e-6)


@pytest.mark.process
@pytest.mark.parametrize("named", [True, False], ids=["gloo", "as NCCL sends"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_number_that_is_none_is_named_where_it_arises_and_not_where_it_is_sent(
    pool: Any, rank: int, named: bool
) -> None:
    """A later stage has done fewer ops when it receives what an earlier one made of its weights."""
    job, weight = describe(PIPELINE), f"blocks.{2 * rank + 1}.mlp_up.weight"
    task = "tests.runtime.megatron_tasks:overflows"
    for said in pool.run(task, 2, grid=as_four_d(job), axes=PIPELINE, weight=weight, named=named):
        assert f"first on rank {rank} (pipeline {rank}" in said
        assert f"micro0/F/block{2 * rank + 1}/mlp_up/gemm" in said


@pytest.mark.process
@pytest.mark.parametrize("options", [V, DUAL], ids=["zb_v", "dualpipe_v"])
def test_stages_of_one_rank_hand_on_without_messages(pool: Any, options: dict[str, Any]) -> None:
    job = describe(PIPELINE, **options)
    found = {"grid": as_four_d(job), "axes": PIPELINE, "weight": "blocks.2.mlp_up.weight", "named": False, **options}
    for said in pool.run("tests.runtime.megatron_tasks:overflows", 2, **found):
        assert "first on rank" in said
        assert "block2/mlp_up/gemm" in said


@pytest.mark.parametrize(
    ("axes", "options", "remedy"),
    [
        (TENSOR, {"flavour": "megatron"}, r"flavour = 'megatron'.*trains with flavour: torch"),
        ({"context": 4}, {"context_exchange": "hierarchical"}, r"context_exchange = 'hierarchical'.*ring"),
        ({"context": 4}, {**TRADE, "model": {**MODEL, "kv_heads": 2}}, r"context_exchange = 'all_to_all'.*all_gather"),
        ({"context": 4, "data": 2}, {"weight_shards": 2}, r"weight_shards = 2.*multiple of the 4 context ranks"),
        (TENSOR, {**FAMILIES["neox"]}, r"grid.tensor = 2.*strategy: four_d"),
        (TENSOR, {"recompute": True, "recompute_keeps": "attention"}, r"recompute_keeps.*leave it out"),
        (DATA, FAMILIES["gpt2_tied"], r"model.tied_embeddings.*strategy: fsdp"),
        (TENSOR, {**SP, "tensor_overlap": True}, r"tensor_overlap.*leave it out"),
    ],
)
def test_what_pytorch_does_not_do_is_simulated_and_not_trained(
    axes: dict[str, int], options: dict[str, Any], remedy: str
) -> None:
    from runtime.strategies import trains
    from twin.engine.simulate import simulate

    job = describe(axes, **options)
    assert simulate(job).step_seconds > 0
    with pytest.raises(DescriptionError, match=remedy):
        trains(job)
