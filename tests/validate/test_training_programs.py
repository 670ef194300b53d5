"""What programs other than Megatron say in published rows, and what stands for what no strategy here has."""

from __future__ import annotations

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
    assert (job.recompute_keeps, job.context_exchange, job.layers_in_steps) == ("attention", "ring", True)
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
