"""Tensor parallelism's exchanges in parts beside products: what Transformer Engine does by default, and PyTorch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.strategies.pipelined import FP32, WHOLE, B, H, S, described, hidden_by, moved, ops, parameters
from twin.compare.kinds import compute_kind
from twin.cost.gemm import gemm_seconds
from twin.cost.memory import memory_use
from twin.description.load import load_device
from twin.schedule.kernels import Gemm
from twin.schedule.ops import Compute
from twin.strategies.megatron.options import variants

OVERLAP = {"sequence_parallel": True, "tensor_overlap": True}


def flops(job: Any, within: str) -> Counter[str]:
    """Count the flops of products by linear."""
    found: Counter[str] = Counter()
    for name, op in ops(job):
        if name.startswith(within) and isinstance(op, Compute) and isinstance(op.kernel, Gemm):
            found[name.removeprefix(within).split("/")[0]] += int(op.kernel.flops)
    return found


@pytest.mark.parametrize("flavour", ["megatron", "torch"])
@pytest.mark.parametrize("t", [2, 4, 8])
def test_parts_are_the_whole(t: int, flavour: str) -> None:
    """The same flops of each linear, the same bytes of each kind."""
    whole, parts = (
        described({"tensor": t}, flavour=flavour, sequence_parallel=True, tensor_overlap=overlap)
        for overlap in (False, True)
    )
    for within in ("micro1/F/block2/", "micro1/B/block2/"):
        assert flops(parts, within) == flops(whole, within)
        sent = [
            {kind: sum(size * n for (of, size), n in moved(job, within=within).items() if of == kind) for kind in KINDS}
            for job in (whole, parts)
        ]
        assert sent[0] == pytest.approx(sent[1])


KINDS = ("all_gather", "reduce_scatter")


def test_parts_of_products_are_products() -> None:
    """They counted as element-wise work: with eight tensor ranks two fifths of all flops of products."""
    for flavour in ("megatron", "torch"):
        for name, op in ops(described({"tensor": 8}, flavour=flavour, **OVERLAP)):
            if isinstance(op, Compute) and isinstance(op.kernel, Gemm):
                assert compute_kind(name, op.phase) == "gemm", name


def test_megatrons_own_head_waits_for_what_it_gathers() -> None:
    assert hidden_by(described({"tensor": 4}, **OVERLAP), "micro1/F/head", "all_gather") == []
    torch = described({"tensor": 4}, flavour="torch", **OVERLAP)
    assert hidden_by(torch, "micro1/F/head", "all_gather") == ["/gemm_beside"]


def test_each_gather_of_a_block_runs_beside_what_reads_it() -> None:
    """ring_exchange of qkv_fprop, fc1_fprop, fc2_dgrad and proj_dgrad; bulk of fc1_dgrad and qkv_dgrad."""
    job = described({"tensor": 4}, **OVERLAP)
    assert hidden_by(job, "micro1/F/block2/", "all_gather") == ["qkv/gemm_beside", "mlp_up/gemm_beside"]
    backward = hidden_by(job, "micro1/B/block2/", "all_gather")
    assert backward == [
        "mlp_down/input_gradient_beside",
        "mlp_up/input_gradient",
        "projection/input_gradient_beside",
        "qkv/input_gradient",
    ]


def test_the_last_of_four_parts_is_summed_behind_the_last_product() -> None:
    """`pipeline` of proj_fprop and fc2_fprop, num_splits 4; PyTorch sends while the next part is computed."""
    job = described({"tensor": 8}, **OVERLAP)
    assert moved(job, within="micro1/F/block2/")["reduce_scatter", WHOLE / 4] == 2
    names = [name.removeprefix("micro1/F/block2/") for name, _ in ops(job) if name.startswith("micro1/F/block2/mlp_d")]
    ends = [name.split("/", 1)[1] for name in names]
    assert ends.index("gemm_beside") < ends.index("last/reduce_scatter_tensor")
    assert hidden_by(job, "micro1/F/block2/", "reduce_scatter") == ["projection/gemm_beside", "mlp_down/gemm_beside"]
    torch = described({"tensor": 8}, flavour="torch", **OVERLAP)
    assert moved(torch, within="micro1/F/block2/")["reduce_scatter", WHOLE] == 2


def test_parts_of_a_product_cost_no_less_than_the_whole() -> None:
    device = load_device("h100-sxm")
    for m in (2048, 4096, 8192):
        whole = gemm_seconds(device, Gemm(m, 4096, 4096))
        for parts in (2, 4, 8):
            split = gemm_seconds(device, Gemm(m // parts, 4096, 4096))
            split += gemm_seconds(device, Gemm(m // parts, 4096, 4096, batch=parts - 1))
            assert split >= whole


def test_sums_of_16_bits_are_widened_for_the_update() -> None:
    """Megatron's copy_model_grads_to_main_grads: 4 bytes of what a rank updates, when activations are gone."""
    small: dict[str, Any] = {"model": {"sequence": 32}, "sequences": 1, "micro_steps": 1}
    for data, divided in ((1, False), (4, True)):
        options = {**small, "distributed_optimizer": divided}
        job = described({"data": data}, gradient_precision="compute", **options)
        used = memory_use(job).by_category
        total = parameters() - (S - 32) * H
        own = -(-total // data) if divided else total
        assert used["activations"] + used["gradients of the update"] == FP32 * own
        wide = memory_use(described({"data": data}, **options)).by_category
        assert "gradients of the update" not in wide
    divided = {**small, "distributed_optimizer": True, "gradient_precision": "compute"}
    few = memory_use(described({"data": 4}, flavour="deepspeed", **divided))
    assert "gradients of the update" not in few.by_category
    many = memory_use(described({}, gradient_precision="compute", sequences=8 * B, model={"sequence": 4 * S}))
    assert "gradients of the update" not in many.by_category


def test_a_search_without_sequence_parallelism_leaves_its_overlap_out() -> None:
    """Candidates kept `tensor_overlap`, which is refused then, and were never tried."""
    job = described({"tensor": 2}, **OVERLAP)
    options = [each for each in variants(job, frozenset({"sequence"})) if not each.sequence_parallel]
    assert options
    for each in options:
        assert not each.on(job).tensor_overlap
        raw: dict[str, Any] = {"tensor_overlap": True, "sequence_parallel": True}
        each.settle(raw)
        assert not raw["sequence_parallel"]
        assert "tensor_overlap" not in raw
