"""Flavour torch: weights cut below the other axes, against FSDP2 alone, bytes by hand, and what is computed again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.strategies.pipelined import BF16, FP32, WHOLE, H, V, described, moved, ops, parameters, started
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.kernels import Gemm
from twin.schedule.ops import Compute, Start, Wait
from twin.strategies import load_job, strategy_of

BLOCK = 12 * H * H + 13 * H
LLAMA = {"positions": "rotary", "activation": "swiglu", "norm": "rms", "biases": False}


def torch_job(grid: dict[str, int], **options: Any) -> Any:
    return described(grid, flavour="torch", **options)


# Against FSDP2 alone


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("micro_steps", [1, 2])
def test_without_other_axes_it_is_fsdp2(micro_steps: int, recompute: bool) -> None:
    """The same model, machine and batch as `strategy: fsdp`: two generators, one time and the same bytes."""
    model = {"layers": 6, "hidden": 2048, "heads": 16, "sequence": 2048, "vocabulary": 32000, **LLAMA}
    common = {
        "model": model,
        "machine": "dgx-h100",
        "ranks": 16,
        "batch": {"sequences": 16 * micro_steps, "micro_sequences": 1},
        "recompute": recompute,
    }
    alone = load_job({**common, "strategy": "fsdp", "grid": {"weights": 16}, "reduce_precision": "fp32"})
    composed = load_job({**common, "strategy": "megatron", "flavour": "torch", "grid": {"data": 16}})
    sent = [
        sorted((op.kind, op.bytes) for _, op in started(job) if op.kind in ("all_gather", "reduce_scatter"))
        for job in (alone, composed)
    ]
    assert sent[0] == sent[1]
    one, other = simulate(alone).step_seconds, simulate(composed).step_seconds
    # it recomputes no product whose result nothing needs
    assert other == pytest.approx(one, rel=2e-3) if not recompute else 0.9 * one < other < one
    memory = [strategy_of(job).memory(job, strategy_of(job).roles(job)[0]) for job in (alone, composed)]
    for key in ("weights", "gradients", "optimizer", "gathered weights", "buffers"):
        assert memory[1][key] == pytest.approx(memory[0][key], rel=1e-3)


# Bytes


def test_every_pass_gathers_and_every_micro_step_scatters() -> None:
    """2ψ forward; 2ψ again backward but for the head, which stays; 4ψ of gradients: each micro-step."""
    job = torch_job({"data": 4, "tensor": 2}, micro_steps=3)
    psi, head = parameters(tensor=2), V * H // 2 + 2 * H
    gathered = sum(op.bytes for _, op in started(job, communicator="data_gather"))
    scattered = sum(op.bytes for _, op in started(job, communicator="data_scatter"))
    assert gathered == 3 * BF16 * (2 * psi - head)
    assert scattered == 3 * FP32 * psi


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_a_pipeline_gathers_once_and_scatters_behind_the_last_backward_pass(schedule: str) -> None:
    job = torch_job({"pipeline": 2, "data": 4}, schedule=schedule)
    for stage, ends in ((0, "first"), (1, "last")):
        psi = parameters(2, ends=ends)
        gathers, scatters = (started(job, stage, communicator=f"data_{what}") for what in ("gather", "scatter"))
        assert sum(op.bytes for _, op in gathers) == BF16 * psi
        where = "micro0/F/" if schedule == "1f1b" else f"fwd/stage{stage}/"
        assert all(name.startswith(where) for name, _ in gathers)
        assert sum(op.bytes for _, op in scatters) == FP32 * psi
        names = [name for name, op in ops(job, stage) if isinstance(op, Compute | Start)]
        before = [i for i, name in enumerate(names) if name.endswith(("weight_gradient", "/send"))]
        assert names.index(scatters[0][0].replace("reduce_scatter_data", "pack")) > max(before)


def test_older_pipelines_reduce_before_they_send() -> None:
    for earlier in (False, True):
        job = torch_job({"pipeline": 2, "data": 4}, reduces_before_sending=earlier)
        names = [name for name, op in ops(job, 1) if isinstance(op, Start)]
        scattered = min(i for i, name in enumerate(names) if name.endswith("reduce_scatter_data"))
        assert (scattered < names.index("messages/micro3/B/send")) is earlier
    alone = [torch_job({"data": 4}, reduces_before_sending=earlier) for earlier in (False, True)]
    assert ops(alone[0]) == ops(alone[1])


def test_what_is_told_to_stay_or_go_does() -> None:
    keep = torch_job({"data": 4}, reshard_after_forward=False)
    gathered = [op.bytes for _, op in started(keep, communicator="data_gather")]
    assert sum(gathered) == keep.micro_steps * BF16 * parameters()  # a backward pass ends with weights dropped
    drop = torch_job({"pipeline": 2, "data": 4}, reshard_after_forward=True)
    found = sum(op.bytes for _, op in started(drop, communicator="data_gather"))
    assert found == 4 * BF16 * 2 * parameters(2, ends="first")


def test_replicas_sum_the_parts_that_they_share() -> None:
    """HSDP: 8 ranks in groups of 4; a rank's part of each unit is all-reduced in fp32, over ranks 4 apart."""
    job = torch_job({"data": 8}, weight_shards=4)
    parts = Counter({op.bytes for _, op in started(job, communicator="data_replicate")})
    assert FP32 * BLOCK / 4 in parts
    groups = {c.name: c.members.tolist() for c in strategy_of(job).communicators(job)}
    assert groups["data_gather"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups["data_replicate"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_context_ranks_share_weights_too() -> None:
    job = torch_job({"data": 2, "context": 2}, attention="flash")
    groups = {c.name: c.members.tolist() for c in strategy_of(job).communicators(job)}
    assert groups["data_gather"] == [[0, 1, 2, 3]]


def test_a_step_ends_with_the_norm_and_the_own_part() -> None:
    job = torch_job({"data": 4, "tensor": 2}, sequence_parallel=True)
    last = ("reduce/", "optimizer/")
    names = [name.removeprefix("reduce/") for name, op in ops(job) if name.startswith(last) and not waits(op)]
    names = [name for name in names if not name.startswith("stage0/")]
    assert names == [
        "replicated0/all_reduce_tensor",
        "replicated1/all_reduce_tensor",
        "loss/all_reduce_data",
        "optimizer/clip/norm",
        "optimizer/clip/all_reduce_data",
        "optimizer/clip/scale",
        "optimizer/adamw",
    ]


def waits(op: Any) -> bool:
    return isinstance(op, Wait)


# DTensor


def test_inputs_are_kept_and_sums_waited_for() -> None:
    """No second gather of a column-parallel input; each collective along the sequence has a copy beside it."""
    job = torch_job({"tensor": 2}, sequence_parallel=True, micro_steps=1)
    assert not started(job, within="input/all_gather")
    block = [(name, op) for name, op in ops(job) if "block1/" in name]
    sent = [op for name, op in block if isinstance(op, Start)]
    copies = [op.kernel.bytes for name, op in block if isinstance(op, Compute) and name.endswith("/order")]
    assert len(sent) == len(copies) == 8
    assert set(copies) == {2 * WHOLE}
    names = [name for name, op in block if isinstance(op, Compute | Start)]
    assert names.index("micro0/B/block1/qkv/weight_gradient") < names.index("micro0/B/block1/qkv/reduce_scatter_tensor")


def test_async_tensor_parallelism_runs_beside_its_products() -> None:
    job = torch_job({"tensor": 2}, sequence_parallel=True, tensor_overlap=True, micro_steps=1)
    split = [name for name, op in ops(job) if isinstance(op, Compute) and name.endswith("_beside")]
    assert {name.rpartition("/")[2] for name in split} == {"gemm_beside", "input_gradient_beside"}
    # what column-parallel ones that read the same send back is added first: no product that it could leave beside
    back = {name.split("/")[-2] for name in split if name.endswith("input_gradient_beside")}
    assert back == {"projection", "mlp_down"}
    whole = torch_job({"tensor": 2}, sequence_parallel=True, micro_steps=1)
    flops = [
        sum(op.kernel.flops for _, op in ops(each) if isinstance(op, Compute) and isinstance(op.kernel, Gemm))
        for each in (job, whole)
    ]
    assert flops[0] == flops[1]


# Recomputation


def products(job: Any) -> Counter[str]:
    return Counter(
        name.partition("/recompute/")[2].rpartition("/")[0]
        for name, op in ops(job)
        if "/recompute/block1" in name and isinstance(op, Compute) and isinstance(op.kernel, Gemm)
    )


@pytest.mark.parametrize(
    ("keeps", "attends", "expected"),
    [
        ("nothing", True, {"qkv", "projection", "mlp_up"}),
        ("attention", False, {"qkv", "projection", "mlp_up"}),
        ("half_products", False, {"qkv", "projection", "mlp_up"}),
    ],
)
def test_what_is_kept_is_not_computed_again(keeps: str, attends: bool, expected: set[str]) -> None:
    """The last product of a block is of no use; of the others torchtitan keeps every second one."""
    job = torch_job({"tensor": 2}, recompute=True, recompute_keeps=keeps, micro_steps=1, model=LLAMA)
    names = [name for name, _ in ops(job) if "recompute/block1" in name]
    assert any(name.endswith("/attention") for name in names) is attends
    assert set(products(job)) == {f"block1/{name}" for name in expected}


def test_half_of_the_products_is_keys_projection_and_one_of_the_mlp() -> None:
    """Of wq, wk, wv, wo, w1, w3, w2 the second, fourth and sixth."""
    job = torch_job({}, recompute=True, recompute_keeps="half_products", micro_steps=1, model=LLAMA)
    again = [
        (op.kernel.n, op.kernel.k)
        for name, op in ops(job)
        if "/recompute/block1" in name and isinstance(op, Compute) and isinstance(op.kernel, Gemm)
    ]
    assert again == [(H, H), (H, H), (job.model.mlp_hidden, H)]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("more", [{"flavour": "megatron"}, {"flavour": "torch", "dropout": 0.1}], ids=str)
def test_sums_over_ranks_are_kept_with_half_of_the_products(more: dict[str, Any], sequence_parallel: bool) -> None:
    again = {"recompute": True, "recompute_keeps": "half_products"}
    job = described({"tensor": 2}, micro_steps=1, model=LLAMA, sequence_parallel=sequence_parallel, **again, **more)
    assert {op.kind for _, op in started(job, within="recompute/", communicator="tensor")} <= {"all_gather"}


def test_memory_of_what_is_kept() -> None:
    """By hand, of a micro-batch of m tokens: the input; the output of attention with a sum for each row and head."""
    m = 2 * 256
    base, kept = (
        described({}, recompute=True, recompute_keeps=keeps, micro_steps=1) for keeps in ("nothing", "attention")
    )
    one, other = (strategy_of(job).memory(job, strategy_of(job).roles(job)[0])["activations"] for job in (base, kept))
    assert other - one == 4 * (BF16 * m * H + FP32 * m * 8)


# A parallel block


@pytest.mark.parametrize("flavour", ["megatron", "deepspeed"])
def test_a_parallel_block_sums_once_forward(flavour: str) -> None:
    """Attention and MLP read the same: one sum over tensor ranks forward, and one backward (GPT-NeoX two)."""
    job = described({"tensor": 2}, flavour=flavour, model={"residual": "parallel"}, micro_steps=1)
    assert moved(job, within="F/block1/", communicator="tensor") == {("all_reduce", WHOLE): 1}
    assert moved(job, within="B/block1/", communicator="tensor").total() == (2 if flavour == "deepspeed" else 1)


def test_a_parallel_block_gathers_once() -> None:
    job = described({"tensor": 2}, sequence_parallel=True, model={"residual": "parallel"}, micro_steps=1)
    assert moved(job, within="F/block1/", communicator="tensor") == {
        ("all_gather", WHOLE): 1,
        ("reduce_scatter", WHOLE): 1,
    }


@pytest.mark.parametrize("grid", [{"data": 4}, {"data": 4, "tensor": 2}, {"pipeline": 2, "data": 4}])
def test_gathers_and_reductions_may_be_one_communicators(grid: dict[str, int]) -> None:
    """The same bytes by one name, one behind the other; a step is no shorter by it."""
    slow = {"extends": "polaris", "library": "nccl-tcp"}
    together, apart = (torch_job(grid, machine=slow, separate_reduction_group=own) for own in (False, None))
    assert moved(together, communicator="data_weights") == moved(apart, communicator="data_gather") + moved(
        apart, communicator="data_scatter"
    )
    assert not moved(together, communicator="data_gather") + moved(together, communicator="data_scatter")
    assert simulate(together).step_seconds >= simulate(apart).step_seconds
    assert simulate(together).step_seconds == pytest.approx(simulate(together, engine="des").step_seconds, rel=1e-9)


# What is refused


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "shards of others": ({"weight_shards": 2}, r"weight_shards.*flavour: torch"),
    "reduced apart by others": ({"separate_reduction_group": True}, "separate_reduction_group.*flavour: torch"),
    "losses of others": ({"loss_in_place": False}, "loss_in_place.*flavour: torch"),
    "sent by others": ({"grid": {"pipeline": 2}, "reduces_before_sending": True}, "reduces_before_sending"),
    "shards that do not divide": ({"flavour": "torch", "grid": {"data": 4}, "weight_shards": 3}, "must divide the 4"),
    "one shard": ({"flavour": "torch", "grid": {"data": 4}, "weight_shards": 1}, "more than one of several"),
    "Megatron's optimizer": ({"flavour": "torch", "distributed_optimizer": True}, "fully_shard has not"),
    "not among PyTorch's": ({"flavour": "torch", "grid": {"pipeline": 2}, "schedule": "zb_h2"}, "zb_h1, zb_v"),
    "tied over stages": (
        {"flavour": "torch", "grid": {"pipeline": 2}, "model": {"tied_embeddings": True}},
        "tied_embeddings",
    ),
    "gathered twice": (
        {"flavour": "torch", "grid": {"pipeline": 2, "data": 2}, "schedule": "zb_h1", "reshard_after_forward": True},
        "needed twice",
    ),
    "gathered by Megatron": ({"reshard_after_forward": False}, "reshard_after_forward = False: is of PyTorch's"),
    "sums of PyTorch's products": ({"flavour": "torch", "fused_accumulation": False}, "never add to sums"),
    "kept of nothing": ({"recompute_keeps": "attention"}, "needs recompute: true"),
    "nothing is fused": ({"fused_residual": False, "fused_elementwise": False}, "needs flavour: megatron or deepspeed"),
    "chains of a fused norm": ({"layers_in_steps": True}, r"set model\.norm: rms"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    options, match = BAD[case]
    with pytest.raises(DescriptionError, match=match):
        described(**{"grid": {}, **options})
