"""The end of a step against the implementations' order, and when it happens against every rank simulated by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.pipelined import BF16, FP32, H, S, V, described, moved, ops, parameters, started
from twin.description.problems import DescriptionError
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.schedule.kernels import Gemm
from twin.schedule.ops import Compute, Start, Wait
from twin.strategies import load_job, strategy_of
from twin.strategies.megatron.orders import problems

# Gradients and weights


def test_a_step_ends_in_the_order_of_finalize_model_grads() -> None:
    """Data-parallel sum, what tensor ranks share, tied tables, norm, update, weights (Megatron-LM)."""
    job = described(
        {"pipeline": 2, "data": 2, "tensor": 2},
        sequence_parallel=True,
        distributed_optimizer=True,
        model={"tied_embeddings": True},
    )
    last = ("reduce/", "optimizer/")
    names = [name.removeprefix("reduce/") for name, op in ops(job) if name.startswith(last) and not is_wait(op)]
    assert names == [
        "reduce_scatter_data",
        "replicated/all_reduce_tensor",
        "tied/all_reduce",
        "optimizer/clip/norm",
        "optimizer/clip/all_reduce_pipeline",
        "optimizer/clip/scale",
        "optimizer/adamw",
        "optimizer/all_gather_data",
    ]
    deepspeed = described({"pipeline": 2, "data": 2, "tensor": 2}, flavour="deepspeed", model={"tied_embeddings": True})
    first = [name for name, op in ops(deepspeed) if name.startswith("reduce/") and isinstance(op, Start)]
    assert first[:2] == ["reduce/tied/all_reduce", "reduce/all_reduce_data"]


def is_wait(op: Any) -> bool:
    return isinstance(op, Wait)


def test_tied_tables_are_summed_over_the_ends_of_the_pipeline() -> None:
    """4Vh/t bytes over {first, last}; an untied model has none, and stages between them neither."""
    tied = described({"pipeline": 4, "tensor": 2}, model={"tied_embeddings": True})
    for stage in range(4):
        found = moved(tied, stage, communicator="embedding")
        assert found == ({("all_reduce", 4.0 * V * H / 2): 1} if stage in (0, 3) else {})
    assert moved(described({"pipeline": 4, "tensor": 2}), communicator="embedding") == {}
    groups = {c.name: c.members.tolist() for c in strategy_of(tied).communicators(tied)}
    assert groups["pipeline_embedding"] == [[0, 6], [1, 7]]


def test_a_v_holds_a_tied_table_once() -> None:
    """Its first and last stage are on one rank: nothing to sum, and no copy."""
    for schedule, chunks in (("zb_v", 2), ("dualpipe", 1)):
        plain, tied = (
            described({"pipeline": 2}, schedule=schedule, chunks=chunks, model={"tied_embeddings": tie})
            for tie in (False, True)
        )
        assert moved(tied, communicator="embedding") == {}
        strategy = strategy_of(tied)
        one, other = (strategy.memory(job, strategy.roles(job)[0])["weights"] for job in (plain, tied))
        assert one - other == BF16 * V * H


def test_both_directions_of_dualpipe_sum_their_gradients() -> None:
    """Ranks r and P − 1 − r hold stages r and P − 1 − r both: twice the parameters, and twice the sharers."""
    job = described({"pipeline": 4, "data": 2}, micro_steps=8, schedule="dualpipe", distributed_optimizer=True)
    (data,) = [c for c in strategy_of(job).communicators(job) if c.name == "data"]
    assert sorted(data.members.tolist()) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    psi = parameters(2)  # blocks 0 and 3 with both ends
    for stage in (0, 3):
        assert moved(job, stage, communicator="data") == {
            ("reduce_scatter", float(FP32 * psi)): 1,
            ("all_gather", float(BF16 * psi)): 1,
        }
        used = strategy_of(job).memory(job, strategy_of(job).roles(job)[stage])
        assert used["weights"] == BF16 * psi
        assert used["optimizer"] == pytest.approx(12 / 4 * psi, rel=1e-6)


@pytest.mark.parametrize("flavour", ["megatron", "deepspeed", "torch"])
@pytest.mark.parametrize(("grid", "axis"), [({"data": 2, "tensor": 2}, "tensor"), ({"pipeline": 2}, "pipeline")])
def test_the_norm_is_booked_under_an_axis_that_is_cut(grid: dict[str, int], axis: str, flavour: str) -> None:
    """A job without a pipeline has no time in it."""
    job = described(grid, flavour=flavour)
    assert {op.axis for _, op in started(job, within="clip/")} <= {axis}
    by_axis = report(simulate(job)).exposed_by_axis
    assert not [name for name, seconds in by_axis.items() if seconds and grid.get(name, 1) == 1]


def test_norms_of_sequence_parallelism_are_summed_over_tensor_ranks() -> None:
    """Of a block two norms with biases and two biases of row-parallel linears; positions; the last norm."""
    common = 4 * (4 * H + 2 * H) + S * H + 2 * H
    job = described({"tensor": 4}, sequence_parallel=True)
    assert moved(job, within="replicated") == {("all_reduce", float(FP32 * common)): 1}
    assert moved(described({"tensor": 4}), within="replicated") == {}


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("compute", 2)])
def test_gradients_travel_once_in_their_type(precision: str, size: int) -> None:
    grid = {"data": 4, "tensor": 2}
    psi = parameters(tensor=2)
    job = described(grid, gradient_precision=precision)
    assert moved(job, communicator="data") == {("all_reduce", float(size * psi)): 1}
    job = described(grid, gradient_precision=precision, distributed_optimizer=True)
    assert moved(job, communicator="data") == {
        ("reduce_scatter", float(size * psi)): 1,
        ("all_gather", float(BF16 * psi)): 1,
    }


def test_deepspeed_reduces_sixteen_bits() -> None:
    """BF16_Optimizer: two bytes a parameter all-reduced, then as many gathered (logs of LUMI)."""
    job = described({"pipeline": 2, "data": 4}, flavour="deepspeed", distributed_optimizer=True)
    for stage, ends in ((0, "first"), (1, "last")):
        psi = float(parameters(2, ends=ends))
        assert moved(job, stage, communicator="data") == {("all_reduce", 2 * psi): 1, ("all_gather", 2 * psi): 1}


LARGE = {"layers": 4, "hidden": 2048, "heads": 16, "vocabulary": 32000}
"""Of 50 million elements a block, more than a bucket's forty."""


def test_only_the_first_stage_reduces_in_buckets() -> None:
    """`disable_bucketing` on the others; with `overlap_gradients` all are on their way before the last pass ends."""
    job = described({"pipeline": 2, "data": 2}, overlap_gradients=True, model=LARGE)
    first, second = (started(job, stage, communicator="data") for stage in range(2))
    assert (len(first), len(second)) == (3, 1)
    assert all(name.startswith("micro3/B/") for name, _ in [*first, *second])
    assert first[0][0].startswith("micro3/B/block1/")
    for stage, ends in ((0, "first"), (1, "last")):
        h, v = 2048, 32000
        psi = 2 * (12 * h * h + 13 * h) + v * h + (S * h if ends == "first" else 2 * h)
        assert sum(op.bytes for _, op in (first, second)[stage]) == FP32 * psi
    names = [name for name, op in ops(job, 1) if not isinstance(op, Wait)]
    assert names.index(second[0][0]) > max(i for i, name in enumerate(names) if name.startswith("micro3/B/block2"))
    assert moved(described({"pipeline": 2, "data": 2}, model=LARGE), communicator="data").total() == 1


def test_chunks_reduce_after_their_own_last_backward_pass() -> None:
    job = described(
        {"pipeline": 2, "data": 2}, schedule="interleaved", chunks=2, overlap_gradients=True, distributed_optimizer=True
    )
    for stage in range(2):
        found = [name for name, op in started(job, stage, communicator="data") if op.kind == "reduce_scatter"]
        assert [name.split("/")[:2] for name in found] == [["micro3", "B1"], ["micro3", "B0"]]


def test_weights_are_gathered_before_they_are_used() -> None:
    """`overlap_param_gather`: a bucket is waited for where it is used, of a chunk in its first forward pass."""
    options = {"overlap_gradients": True, "distributed_optimizer": True, "overlap_parameters": True}
    job = described({"pipeline": 2, "data": 2}, model=LARGE, **options)
    both = ops(job)
    gathers = [(name, op) for name, op in started(job, communicator="data") if op.kind == "all_gather"]
    scattered = sum(op.bytes for _, op in started(job, communicator="data") if op.kind == "reduce_scatter")
    assert sum(op.bytes for _, op in gathers) == scattered * BF16 / FP32
    for name, _ in gathers:
        waited = next(i for i, (other, op) in enumerate(both) if other == name and isinstance(op, Wait))
        assert waited < next(i for i, (other, _) in enumerate(both) if other.startswith("messages/micro0/F/send"))
    names = [name for name, op in both if not isinstance(op, Start)]
    assert len(gathers) == 3
    for gather, user in zip(
        gathers, ("embedding/lookup", "block0/norm1/normalize", "block1/norm1/normalize"), strict=True
    ):
        assert names.index(gather[0]) < names.index(f"micro0/F/{user}")
    assert names.index(gathers[2][0]) > names.index("micro0/F/embedding/lookup")


# When


SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb_h1", 1), ("zb_h2", 1), ("zb_v", 2), ("dualpipe", 1)]


@st.composite
def any_jobs(draw: st.DrawFn) -> Any:
    """Jobs of up to 64 ranks: all schedules, uneven stages, stragglers, both orders of ranks, what overlaps or not."""
    schedule, chunks = draw(st.sampled_from([*SCHEDULES, ("dualpipe_v", 2), ("deepspeed", 1)]))
    flavour = "deepspeed" if schedule == "deepspeed" else "megatron"
    schedule = "1f1b" if schedule == "deepspeed" else schedule
    if flavour == "megatron" and schedule not in ("zb_h2", "dualpipe"):
        flavour = draw(st.sampled_from(["megatron", "torch"]))
    pipeline = draw(st.sampled_from([2, 4]))
    if flavour == "torch" and schedule == "interleaved":  # of more than three some are freed and gathered again
        chunks = draw(st.sampled_from([2, 3, 5]))
    data, context, tensor = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 4], [1, 2, 4], [1, 2]))
    micro_steps = pipeline * draw(st.integers(1, 2)) * (2 if schedule.startswith("dualpipe") else 1)
    stages = pipeline if schedule == "dualpipe" else pipeline * chunks
    layers = draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages).filter(sum))
    ranks = pipeline * data * context * tensor
    slow = draw(st.lists(st.integers(0, ranks - 1), max_size=2, unique=True))
    options: dict[str, Any] = {"stragglers": [{"rank": rank, "slowdown": 1.0 + 0.1 * (rank + 1)} for rank in slow]}
    if flavour != "deepspeed":
        options["sequence_parallel"] = draw(st.booleans())
        options["tensor_overlap"] = options["sequence_parallel"] and draw(st.booleans())
    if flavour == "megatron":
        options["overlap_gradients"] = draw(st.booleans())
        options["overlap_parameters"] = options["overlap_gradients"] and draw(st.booleans())
        options["split_messages"] = not options["sequence_parallel"] and draw(st.booleans())
        if schedule in ("1f1b", "gpipe"):
            options["overlap_messages"] = draw(st.sampled_from([None, True]))
    if flavour == "torch":
        several = data * context > 1
        options["weight_shards"] = draw(st.sampled_from([None, data])) if several and data > 1 else None
        options["reduces_before_sending"] = draw(st.booleans())
        options["reshard_after_forward"] = draw(st.booleans()) if schedule in ("gpipe", "1f1b", "interleaved") else None
    else:
        options["distributed_optimizer"] = bool(options.get("overlap_parameters")) or draw(st.booleans())
    hidden, sequence = draw(st.sampled_from([(128, 64), (4096, 2048)]))  # the host is behind, or ahead
    assert not problems(schedule, pipeline, micro_steps, chunks, None)
    return load_job(
        {
            "strategy": "megatron",
            "flavour": flavour,
            "model": {
                "layers": sum(layers),
                "hidden": hidden,
                "heads": 8,
                "sequence": sequence,
                "vocabulary": 256,
                "tied_embeddings": flavour != "torch" and draw(st.booleans()),
                "residual": draw(st.sampled_from(["serial", "parallel"])),
            },
            "machine": draw(st.sampled_from(["dgx-h100", "perlmutter"])),
            "ranks": ranks,
            "grid": {"pipeline": pipeline, "data": data, "context": context, "tensor": tensor},
            "rank_order": draw(st.sampled_from(["pipeline_outermost", "data_outermost"])),
            "context_exchange": draw(st.sampled_from(["ring", "all_gather", "all_to_all", "hierarchical"])),
            "schedule": schedule,
            "chunks": chunks,
            "stage_layers": layers,
            "batch": {"sequences": micro_steps * data, "micro_sequences": 1},
            "recompute": draw(st.booleans()),
            **options,
        }
    )


@given(any_jobs())
@examples(0.3)
def test_classes_of_ranks_are_as_good_as_every_rank(job: Any) -> None:
    folded, every = simulate(job), simulate(job, engine="des")
    assert folded.step_seconds == pytest.approx(every.step_seconds, rel=1e-9)
    assert every.partition.rank_classes == job.ranks
    for part, one_by_one in zip(folded.parts, every.parts, strict=True):
        rows = {int(c): row for row, c in enumerate(part.classes)}
        mine = [rows[int(folded.partition.rank_class[rank])] for rank in one_by_one.role.ranks]
        np.testing.assert_allclose(part.timeline.end[mine], one_by_one.timeline.end, rtol=1e-9, atol=1e-15)


def test_alike_ranks_are_one_class() -> None:
    job = described({"pipeline": 4, "data": 8, "tensor": 8})
    assert simulate(job).partition.rank_classes == 4


# What is refused


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such schedule": ({"schedule": "1f1bb"}, "schedule"),
    "layers do not divide": ({"grid": {"pipeline": 3}}, r"grid\.pipeline.*stage_layers, such as \[2, 1, 1\]"),
    "layers do not sum up": ({"grid": {"pipeline": 2}, "stage_layers": [2, 3]}, r"stage_layers.*sum to 4"),
    "too few stages": ({"grid": {"pipeline": 2}, "stage_layers": [4]}, "must be 2 numbers"),
    "negative layers": ({"grid": {"pipeline": 2}, "stage_layers": [5, -1]}, "must be 2 numbers"),
    "rule of interleaving": (
        {"grid": {"pipeline": 2}, "schedule": "interleaved", "chunks": 2, "micro_steps": 3},
        r"batch\.micro_sequences",
    ),
    "chunks without interleaving": ({"grid": {"pipeline": 2}, "chunks": 2}, "chunks"),
    "heads": ({"grid": {"tensor": 3}}, r"grid\.tensor.*must divide heads 8"),
    "sequence": ({"grid": {"tensor": 8}, "sequence_parallel": True, "model": {"sequence": 100}}, "sequence_parallel"),
    "context parts": ({"grid": {"context": 8}, "model": {"sequence": 120}, "attention": "flash"}, r"grid\.context"),
    "context and scores": ({"grid": {"context": 2}, "attention": "plain"}, "needs a flash kernel"),
    "traded heads": (
        {"grid": {"context": 4, "tensor": 4}, "attention": "flash", "context_exchange": "all_to_all"},
        r"trades 8 heads",
    ),
    "adapters": ({"lora": {}}, "trains every weight"),
    "overlap without a split": ({"grid": {"tensor": 2}, "tensor_overlap": True}, "needs sequence_parallel"),
    "gathers without shards": ({"grid": {"data": 2}, "overlap_parameters": True}, "needs distributed_optimizer"),
    "waits for ever": ({"grid": {"pipeline": 2}, "schedule": "zb_h1", "overlap_messages": False}, "for ever"),
    "twice again": ({"recompute": True, "recompute_attention": True}, "recompute_attention"),
    "more than there are": ({"recompute": True, "recompute_layers": 5}, "recompute_layers = 5: the model has 4 layers"),
    "DeepSpeed": ({"grid": {"pipeline": 2}, "flavour": "deepspeed", "schedule": "zb_h1"}, "DeepSpeed's pipeline has"),
    "four_d's": ({"overlap": {"all_reduce": False}}, "overlap"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    options, match = BAD[case]
    with pytest.raises(DescriptionError, match=match):
        described(**{"grid": {}, **options})


def test_kernels_of_the_update_are_of_the_own_part() -> None:
    whole, part = (
        next(op.kernel.bytes for name, op in ops(job) if isinstance(op, Compute) and name.endswith("adamw"))
        for job in (described({"data": 4}), described({"data": 4}, distributed_optimizer=True))
    )
    assert whole == pytest.approx(4 * part, rel=1e-5)


@pytest.mark.parametrize(("keys", "apart"), [({}, False), ({"fused_accumulation": False}, True)])
def test_gradients_are_added_by_the_product_or_by_a_kernel(keys: dict[str, Any], apart: bool) -> None:
    """Apart, each micro-step reads a gradient and its sum and writes that; the first one writes alone."""
    job = described({"pipeline": 1}, recompute=False, **keys)
    computes = [(name, op.kernel) for name, op in ops(job) if isinstance(op, Compute)]
    adds = any(kernel.adds for name, kernel in computes if isinstance(kernel, Gemm) and "weight_gradient" in name)
    assert adds is not apart
    sums = [(name, kernel.bytes) for name, kernel in computes if name.endswith("/accumulate")]
    linears = job.model.layers * job.model.block_weights + job.model.vocabulary * job.model.hidden
    last = job.micro_steps - 1
    assert last > 0
    assert sum(size for name, size in sums if name.startswith("micro0/")) == apart * (BF16 + FP32) * linears
    assert sum(size for name, size in sums if f"micro{last}/" in name) == apart * (BF16 + 2 * FP32) * linears
