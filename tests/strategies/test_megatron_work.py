"""What ranks of Megatron's parallelism compute: FLOPs of the hardware, and what is kept of a block or made again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.strategies.pipelined import BF16, H, V, described, ops
from twin.description.problems import DescriptionError
from twin.schedule.kernels import Attention, Gemm, Memory
from twin.schedule.ops import Compute, Start
from twin.strategies import strategy_of
from twin.trace.metrics import hardware_flops, job_flops

LLAMA = {"positions": "rotary", "activation": "swiglu", "norm": "rms", "biases": False}


@pytest.mark.parametrize("more", [{"flavour": "torch"}, {"flavour": "torch", "dropout": 0.1}, {"flavour": "megatron"}])
@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_each_product_is_either_kept_or_made_again(more: dict[str, Any], activation: str) -> None:
    """Torchtitan saves every other product: with SwiGLU the seventh and last, which with dropout was made again too.

    Counted in the order in which a block makes them; of a GELU's six the last is the sixth.
    """
    model = LLAMA | {"activation": activation, "vocabulary": 4 * V}  # so that the loss needs more than a block
    job = described({}, recompute=True, recompute_keeps="half_products", micro_steps=1, model=model, **more)
    size = {"queries": H, "keys": H, "values": H, "projection": H, "gate": job.model.mlp_hidden}
    size |= {"up": job.model.mlp_hidden} if activation == "swiglu" else {}
    size["down"] = H
    saved, left = list(size)[::2], list(size)[1::2]
    if more == {"flavour": "torch"} and "down" in left:
        left.remove("down")  # nothing that is left is needed behind it
    again = [
        op.kernel.flops
        for name, op in ops(job)
        if "/recompute/block1" in name and isinstance(op, Compute) and isinstance(op.kernel, Gemm)
    ]
    m = 2 * 256
    inner = {"down": job.model.mlp_hidden}
    assert sorted(again) == sorted(2.0 * m * size[name] * inner.get(name, H) for name in left)
    role = strategy_of(job).roles(job)[0]
    attention = job.model_copy(update={"recompute_keeps": "attention"})
    one, other = (strategy_of(each).memory(each, role)["activations"] for each in (attention, job))
    # most is there as the backward pass begins, with all blocks' own
    assert other - one == BF16 * m * job.model.layers * sum(size[name] for name in saved)


@pytest.mark.parametrize(
    "options",
    [
        {"recompute": True},
        {"recompute": True, "recompute_keeps": "attention"},
        {"recompute": True, "recompute_keeps": "half_products"},
        {"recompute": True, "recompute_layers": 2},
        {"recompute": True, "dropout": 0.1},  # whose mask stands behind the last product
        {"recompute": True, "recompute_keeps": "half_products", "dropout": 0.1},
        {"recompute": True, "flavour": "megatron"},
        {"recompute": True, "recompute_layers": 3, "flavour": "megatron"},
        {"recompute": False},
        {"recompute": False, "recompute_attention": True, "attention": "plain", "flavour": "megatron"},
    ],
)
def test_flops_of_the_hardware_are_those_of_the_kernels(options: dict[str, Any]) -> None:
    job = described({}, micro_steps=2, **{"flavour": "torch", "model": LLAMA, **options})
    assert hardware_flops(job) == pytest.approx(flops_of_kernels(job), rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"recompute": False},
        {"recompute": True},
        {"recompute": True, "recompute_layers": 3},
        {"recompute": True, "recompute_keeps": "half_products"},
    ],
)
@pytest.mark.parametrize("flavour", ["megatron", "torch"])
def test_keys_that_several_ranks_compute_are_work_of_the_hardware(flavour: str, options: dict[str, Any]) -> None:
    """Two heads of keys for four ranks: each has one, so that keys and values are computed twice over."""
    model = LLAMA | {"kv_heads": 2}
    shared, alone = (described({"tensor": n}, micro_steps=2, flavour=flavour, model=model, **options) for n in (4, 1))
    assert hardware_flops(shared) == pytest.approx(4 * flops_of_kernels(shared), rel=1e-9)
    assert hardware_flops(shared) > hardware_flops(alone)
    assert job_flops(shared, recompute=False) == job_flops(alone, recompute=False)


def flops_of_kernels(job: Any) -> float:
    """Counted op by op of one rank, attention twice for the half that its mask leaves out."""
    counted = 0.0
    for _, op in ops(job):
        if isinstance(op, Compute) and isinstance(op.kernel, Gemm):
            counted += op.kernel.flops
        elif isinstance(op, Compute) and isinstance(op.kernel, Attention):
            kernel = op.kernel
            full = 4.0 * kernel.sequences * kernel.heads * kernel.sequence_length**2 * kernel.head_size
            counted += full * (2 if kernel.backward else 1)
    return counted


@pytest.mark.parametrize("attention", ["flash", "plain"])
@pytest.mark.parametrize("grid", [{}, {"context": 2}])
def test_selective_recomputation_is_of_any_kernel(attention: str, grid: dict[str, int]) -> None:
    """Megatron Core checkpoints its core attention, whose forward pass runs once more a block and micro-batch."""
    if grid and attention == "plain":
        return  # parts of a sequence are for fused kernels
    plain, again = (
        described(grid, attention=attention, recompute_attention=again, micro_steps=2) for again in (False, True)
    )
    forward = [
        name
        for name, op in ops(plain)
        if "/F/" in name and isinstance(op, Compute) and isinstance(op.kernel, Attention)
    ]
    once_more = [
        name for name, op in ops(again) if "/recompute/" in name and isinstance(getattr(op, "kernel", None), Attention)
    ]
    assert len(once_more) == len(forward) >= 2 * 4
    attended = 4.0 * plain.model.sequence * H
    tokens = plain.batch.sequences * plain.model.sequence
    assert hardware_flops(again) - hardware_flops(plain) == pytest.approx(tokens * plain.model.layers * attended)
    held = [strategy_of(job).memory(job, strategy_of(job).roles(job)[0])["activations"] for job in (plain, again)]
    assert held[1] < held[0]


EIGHT = {"machine": "dgx-h100", "precision": "bf16", "fp8_linears": True, "micro_steps": 1}


@pytest.mark.parametrize(
    ("grid", "more"),
    [
        ({"tensor": 2}, {"flavour": "megatron"}),
        ({"tensor": 2}, {"flavour": "torch"}),
        ({"tensor": 2}, {"tensor_overlap": True}),
        ({"tensor": 2}, {"flavour": "torch", "tensor_overlap": True}),
        ({"tensor": 2}, {"fused_accumulation": False}),
        ({"pipeline": 2, "tensor": 2}, {"schedule": "zb_h1", "micro_steps": 4}),
    ],
)
def test_sums_of_8_bits_are_promoted_in_backward_passes_alone(grid: dict[str, int], more: dict[str, Any]) -> None:
    """As Transformer Engine and torchao have it: fast sums forward, and where it is made again."""
    job = described(grid, recompute=True, sequence_parallel=True, **{**EIGHT, **more})
    products = [(op.phase, op.kernel) for _, op in ops(job) if isinstance(op, Compute) and isinstance(op.kernel, Gemm)]
    eight = [(phase, gemm) for phase, gemm in products if gemm.element_bytes == 1]
    assert {phase for phase, _ in eight} == {"fwd", "recompute", "bwd"}
    assert all(gemm.promotes == (phase == "bwd") for phase, gemm in eight)
    assert not any(gemm.promotes for _, gemm in products if gemm.element_bytes > 1)


@pytest.mark.parametrize(
    ("machine", "more", "read", "written"),
    [
        ("dgx-h100", {}, 2, 2),
        ("dgx-h100", {"fp8_recipe": "delayed"}, 2, 2),
        ("dgx-h100", {"fp8_recipe": "tensorwise"}, 4, 2),
        ("dgx-h100", {"flavour": "torch"}, 4, 2),
        ("dgx-b200", {}, 2, 1),  # whose products read either layout
        ("dgx-b200", {"fp8_recipe": "tensorwise"}, 4, 1),
    ],
)
def test_what_is_rounded_is_read_once_more_for_its_scale(
    machine: str, more: dict[str, Any], read: int, written: int
) -> None:
    job = described({}, model={"biases": False}, **{**EIGHT, "machine": machine}, **more)
    tokens = 2 * 256
    inputs = [
        op.kernel.bytes
        for name, op in ops(job)
        if isinstance(op, Compute) and isinstance(op.kernel, Memory) and name.endswith("quantize") and op.phase == "fwd"
    ]
    mlp = job.model.mlp_hidden
    assert sum(inputs) == (read + written) * tokens * (3 * H + mlp) * job.model.layers


def test_a_recipe_of_8_bits_needs_products_of_8_bits() -> None:
    with pytest.raises(DescriptionError, match=r"fp8_recipe.*needs fp8_linears"):
        described({}, machine="dgx-h100", fp8_recipe="tensorwise")


@pytest.mark.parametrize(("machine", "copies"), [("dgx-h100", 2), ("dgx-b200", 1)])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_what_products_of_8_bits_read_stays_in_8_bits(machine: str, copies: int, sequence_parallel: bool) -> None:
    """Transformer Engine keeps a byte of what a linear reads (the attention's output besides), and of each weight."""
    plain, eight = (
        described(
            {"tensor": 2}, **{**EIGHT, "machine": machine, "fp8_linears": fp8}, sequence_parallel=sequence_parallel
        )
        for fp8 in (False, True)
    )
    was, now = (strategy_of(job).memory(job, strategy_of(job).roles(job)[0]) for job in (plain, eight))
    layers, m, mlp = plain.model.layers, 2 * 256, plain.model.mlp_hidden
    assert now["weights in 8 bits"] == copies * layers * 12 * H * H / 2
    norms = 2 * m * H // (2 if sequence_parallel else 1)
    assert was["activations"] - now["activations"] == layers * (norms + m * mlp // 2 - m * H // 2)
    assert all(now[name] == was[name] for name in ("weights", "gradients", "optimizer", "messages"))
    of_torch = described({"tensor": 2}, flavour="torch", sequence_parallel=sequence_parallel, **EIGHT)
    assert "weights in 8 bits" not in strategy_of(of_torch).memory(of_torch, strategy_of(of_torch).roles(of_torch)[0])


def test_weights_are_rounded_once_a_step() -> None:
    job = described({"pipeline": 2, "tensor": 2}, **{**EIGHT, "micro_steps": 4})
    rounded = [
        op.kernel.bytes
        for name, op in ops(job)
        if isinstance(op, Compute) and isinstance(op.kernel, Memory) and name.endswith("quantize") and op.layer is None
    ]
    assert rounded == [4 * 2 * 12 * H * H / 2]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("flavour", ["megatron", "torch"])
def test_biases_behind_a_sum_of_ranks_are_of_the_tokens_that_a_rank_then_has(
    flavour: str, sequence_parallel: bool
) -> None:
    """A row-parallel linear's bias is added once, to the complete sum: of all tokens, or of those scattered here."""
    job = described({"tensor": 2}, flavour=flavour, micro_steps=1, sequence_parallel=sequence_parallel)
    summed = {
        name.split("/")[-2]: op.kernel.bytes
        for name, op in ops(job)
        if isinstance(op, Compute) and isinstance(op.kernel, Memory) and op.kernel.work == "bias_gradient"
    }
    tokens, mlp = 2 * 256, job.model.mlp_hidden
    own = tokens // 2 if sequence_parallel else tokens
    elements = {"qkv": tokens * 3 * H // 2, "projection": own * H, "mlp_up": tokens * mlp // 2, "mlp_down": own * H}
    assert summed == {name: float(BF16 * count) for name, count in elements.items()}


@pytest.mark.parametrize(
    ("fusion", "forward", "backward", "held"), [(None, 38, 14, 12), ("native", 22, 14, 12), ("te", 6, 4, 2)]
)
@pytest.mark.parametrize("tensor", [1, 2])
def test_cross_entropy_moves_what_its_programs_do(
    fusion: str | None, forward: int, backward: int, held: int, tensor: int
) -> None:
    """Bytes a logit in 16 bits, as counted in Megatron's and Transformer Engine's sources; logits outgrow a block."""
    grid = {"tensor": tensor} if tensor > 1 else {}
    job = described(grid, micro_steps=1, loss_fusion=fusion, model={"vocabulary": 64 * V})
    tokens, logits = 2 * 256, 2 * 256 * 64 * V // tensor
    of_loss = [(name, op) for name, op in ops(job) if "/loss/" in name]
    moved = {"fwd": 0.0, "bwd": 0.0}
    for name, op in of_loss:
        if isinstance(op, Compute) and isinstance(op.kernel, Memory) and op.kernel.bytes > logits:
            moved["fwd" if "/F/" in name else "bwd"] += op.kernel.bytes
    assert moved == {"fwd": forward * logits, "bwd": backward * logits}
    collectives = [(op.kind, op.bytes) for _, op in of_loss if isinstance(op, Start)]
    each = [("all_gather", 2 * 3 * 4.0 * tokens)] if fusion == "te" else [("all_reduce", 4.0 * tokens)] * 3
    assert collectives == (each if tensor > 1 else [])
    strategy = strategy_of(job)
    plain = job.model_copy(update={"loss_fusion": None})
    role = strategy.roles(job)[-1]
    spared = strategy.memory(plain, role)["activations"] - strategy.memory(job, role)["activations"]
    assert spared == (12 - held) * logits


def test_fused_losses_are_refused_where_nobody_has_them() -> None:
    for flavour in ("torch", "deepspeed"):
        with pytest.raises(DescriptionError, match=r"loss_fusion.*flavour: megatron"):
            described({}, flavour=flavour, loss_fusion="te")
    with pytest.raises(DescriptionError, match=r"loss_fusion.*loss_rows"):
        described({}, loss_fusion="native", loss_rows=128)
