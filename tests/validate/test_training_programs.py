"""What programs other than Megatron say in published rows, and what stands for what no strategy here has."""

from __future__ import annotations

import pytest

from tests.validate.published import FSDP, GPT, LLAMA, TENSOR, job_of
from twin.strategies import load_job
from twin.validate.training_runs import training_run

TITAN = FSDP | {"source": "torchtitan repository, benchmarks", "machine": "titan_h100_96g", "dp_shard": 64}


def test_torchtitan_is_fsdp_below_other_axes():
    """Degrees, what is computed again, compiled or eager; a micro-batch of a pipeline is one sequence."""
    plain = job_of(TITAN | {"recompute": "selective per-op", "compile": True}, LLAMA)
    assert (plain.flavour, plain.concrete_grid.data, plain.weight_parts) == ("torch", 64, 64)
    assert (plain.recompute, plain.recompute_keeps, plain.fused_elementwise) == (True, "half_products", True)
    eager = job_of(TITAN | {"recompute": "selective layer", "compile": False}, LLAMA)
    assert (eager.recompute_layers, eager.layers_in_steps, eager.fused_elementwise) == (20, True, False)
    cut = {"tp": 8, "pp": 4, "dp_shard": 2, "sequence_parallel": True, "async_tp": True, "local_batch": 8}
    piped = job_of(TITAN | cut | {"global_batch": 16, "schedule": "1f1b", "precision": "fp8 linears"}, LLAMA)
    assert piped.concrete_grid.by_axis() == {"pipeline": 4, "data": 2, "context": 1, "tensor": 8}
    assert (piped.sequence_parallel, piped.tensor_overlap, piped.fp8_linears) == (True, True, True)
    assert (piped.concrete_micro_sequences, piped.micro_steps, piped.reshards) == (1, 8, False)
    assert training_run(TITAN | {"dp_shard": 8}, LLAMA).job == "weights cut over 8 of 64 replicas"


def test_distflashattn_keeps_the_output_of_attention():
    ring = {"source": "arXiv 2310.03294 Table 1", "strategy": "DistFlashAttn: ring", "cp": 8, "gpus": 8}
    row = {**TENSOR, **ring, "tp": 1, "global_batch": 1, "flash_attention": True, "recompute": "attention output kept"}
    row = {key: value for key, value in row.items() if key not in ("dp", "micro_batch")} | {"seq": 65536}
    job = job_of(row, LLAMA)
    assert (job.flavour, job.concrete_grid.context, job.weight_parts) == ("torch", 8, 8)
    assert (job.recompute_keeps, job.context_exchange, job.layers_in_steps) == ("attention", "balanced", True)
    assert job_of(row | {"strategy": "DeepSpeed-Ulysses", "recompute": "full"}, LLAMA).context_exchange == "all_to_all"
    whole = {key: value for key, value in row.items() if key != "recompute"}
    assert job_of(whole, LLAMA).recompute_keeps == "attention"
    assert job_of(whole | {"strategy": "ring with layer-boundary checkpoints"}, LLAMA).recompute_keeps == "nothing"


def test_parallel_blocks_and_what_stands_for_others():
    neox = job_of(TENSOR, GPT | {"note": "rotary, parallel residual"})
    assert (neox.model.residual, neox.model.positions) == ("parallel", "rotary")
    changes = {"model_changes": "parallel transformer block, sliding-window attention, LAMB"}
    megascale = {**changes, "source": "arXiv 2402.15627 Table 2, rows MegaScale", "zero_stage": 2}
    run = training_run(TENSOR | megascale | {"sequence_parallel": True}, GPT)
    job = load_job(run.job)
    assert (job.model.residual, job.tensor_overlap, job.overlap_parameters) == ("parallel", True, True)
    assert any("sliding-window" in said for said in run.notes["assumed"])
    run = training_run(TENSOR | {"pp": 2, "dp": 1, "schedule": "zb2p", "micro_batch": 1}, GPT)
    assert load_job(run.job).schedule == "zb_h2"
    assert any("ZB-H2" in said for said in run.notes["assumed"])


def test_the_fastest_iteration_where_a_row_asks_for_it():
    noisy = TENSOR | {"iteration_s": 9.0, "iteration_s_min": 7.0}
    assert training_run(noisy, GPT).seconds == 9.0
    assert training_run(noisy | {"note": "noisy; use iteration_s_min"}, GPT).seconds == 7.0


def test_what_the_zero_bubble_paper_leaves_open_is_settled_from_its_names_and_scripts():
    """Its sizes as printed leave 25,500 to 33,400 words; its interleaved stages wait for their messages."""
    paper = {"source": "arXiv 2401.10241 (ICLR 2024) Table 4", "machine": "zb_a100_4x8_roce", "gpus": 16, "tp": 1}
    row = TENSOR | paper | {"pp": 16, "dp": 1, "schedule": "1f1b", "micro_batch": 1, "global_batch": 64}
    shape = GPT | {"layers": 48, "hidden": 5120, "heads": 40, "seq": 1024, "vocab": "not stated"}
    job = job_of(row, shape)
    assert (job.model.vocabulary, job.overlap_messages, job.fused_residual) == (32000, None, False)
    for layers, hidden, billions in ((30, 4096, 6.2), (46, 5120, 14.6), (62, 6144, 28.3)):
        blocks = layers * (12 * hidden**2 + 13 * hidden) + 1024 * hidden + 2 * hidden
        allowed = [words for words in range(0, 60000, 100) if round((blocks + words * hidden) / 1e9, 1) == billions]
        assert job.model.vocabulary in allowed
        assert 51200 not in allowed  # what stands where nothing is known
    interleaved = row | {"interleave_v": 3, "schedule": "interleaved_1f1b"}
    assert job_of(interleaved, shape).overlap_messages is False
    assert job_of(interleaved | {"source": "NeMo repository docs"}, shape).overlap_messages is None
    megascale = {"source": "arXiv 2402.15627 Table 2, rows MegaScale", "model_changes": "parallel transformer block"}
    assert job_of(interleaved | megascale, shape).overlap_messages is None  # its own program sends beside compute


def test_attention_is_that_of_the_release_that_ran():
    """MegaScale's Megatron-LM is of before FlashAttention 2, which its own program has."""
    row = TENSOR | {"flash_attention": True, "source": "arXiv 2402.15627 Table 2, rows Megatron-LM (commit 285068c8)"}
    assert job_of(row, GPT).attention == "flash1"
    assert job_of(row | {"source": "arXiv 2402.15627 Table 2, rows MegaScale"}, GPT).attention == "flash"


def test_tensor_ranks_overlap_where_a_row_says_so_in_words():
    row = TENSOR | {"sequence_parallel": "tp overlap on (so yes)", "flash_attention": True}
    assert job_of(row, GPT).tensor_overlap
    assert not job_of(row | {"sequence_parallel": True}, GPT).tensor_overlap


@pytest.mark.parametrize(
    ("source", "model", "dropout", "gradients"),
    [
        ("dgxc-benchmarking repository, release v24.11.1, README", "gpt3_175b", 0.1, "compute"),
        ("NeMo repository docs, performance summary 24.07", "gpt3_5b", 0.1, "compute"),
        ("dgxc-benchmarking repository, release v24.11.1, README", "llama3_8b", 0.0, "fp32"),
        ("dgxc-benchmarking repository, release v25.04, README", "llama3_8b", 0.0, "compute"),
        ("Megatron-Bridge repository docs, performance summary", "llama3_8b", 0.0, "compute"),
        ("Megatron-LM repository", "gpt3_175b", 0.0, "fp32"),
    ],
)
def test_dropout_and_sums_are_those_of_the_programs_configuration(source, model, dropout, gradients):
    row = TENSOR | {"source": source, "model": model, "precision": "bf16", "flash_attention": True, "recompute": "none"}
    job = job_of(row, GPT if model.startswith("gpt3") else LLAMA | {"seq": 2048})
    assert (job.dropout, job.gradient_precision) == (dropout, gradients)


@pytest.mark.parametrize("machine", ["dgx_h100", "dgx-h100", "dgx-b200"])
def test_nvidia_s_programs_take_cudnn_on_hopper_and_newer_by_either_name(machine):
    row = TENSOR | {"source": "NeMo repository docs", "machine": machine, "precision": "bf16", "flash_attention": True}
    assert job_of(row, GPT).attention == "cudnn"
