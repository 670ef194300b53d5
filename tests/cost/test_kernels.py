"""Attention and memory-bound kernels: bounds, shares, and published rates."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorder.jobs import JOBS
from twin.calibrate import fit_attention
from twin.cost.gemm import gemm_seconds
from twin.cost.kernels import attention_name, kernel_seconds, kind_of_work, measured_kind
from twin.description.attention import AttentionForm
from twin.description.device import Device
from twin.description.load import load_device, names
from twin.description.parameter import Parameter
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.schedule.kernels import Attention, Gemm, Memory
from twin.schedule.ops import Compute, Phase
from twin.strategies.four_d.step import generate
from twin.strategies.megatron.loss import FUSED
from twin.strategies.work import (
    activation,
    norm,
    norm_gradient,
    norm_gradient_in_steps,
    norm_in_steps,
    rotary,
    rotary_in_steps,
)

TABLE = Path(__file__).parents[3] / "shared" / "data" / "attention.csv"
needs_table = pytest.mark.skipif(not TABLE.exists(), reason="../shared/data/attention.csv is not here")

DEVICES = {name: load_device(name) for name in names("devices")}
GPUS = [name for name, device in DEVICES.items() if device.type == "gpu"]
devices = st.sampled_from(sorted(DEVICES)).map(DEVICES.__getitem__)
attentions = st.builds(
    Attention,
    sequences=st.integers(1, 16),
    sequence_length=st.sampled_from([1, 128, 200, 1024, 2048, 8192]),
    heads=st.integers(1, 32),
    head_size=st.sampled_from([32, 64, 80, 128, 256]),
    form=st.sampled_from(["flash", "fused_softmax", "plain"]),
    dropout=st.booleans(),
    backward=st.booleans(),
    element_bytes=st.sampled_from([2, 4]),
)


def rate(device: Device, attention: Attention) -> float:
    """TFLOP/s as the FlashAttention benchmarks count: half for causal, backward 2.5 × forward."""
    credited = attention.flops / 2 * (1.25 if attention.backward else 1)
    return credited / kernel_seconds(device, attention) / 1e12


def test_a_product_is_a_product() -> None:
    gemm = Gemm(2048, 4096, 1024)
    for device in DEVICES.values():
        assert kernel_seconds(device, gemm) == gemm_seconds(device, gemm)


@given(devices, attentions)
def test_attention_never_faster_than_peak_or_memory(device: Device, attention: Attention) -> None:
    seconds = kernel_seconds(device, attention)
    least = attention.flops / 2 / device.peak_flops_per_second
    assert seconds > least
    assert seconds > attention.bytes / device.memory_bandwidth_bytes_per_second


@given(devices, attentions)
def test_more_sequences_cost_more_and_at_most_in_proportion(device: Device, attention: Attention) -> None:
    double = Attention(
        2 * attention.sequences,
        attention.sequence_length,
        attention.heads,
        attention.head_size,
        attention.form,
        attention.dropout,
        attention.backward,
        attention.element_bytes,
    )
    one, two = kernel_seconds(device, attention), kernel_seconds(device, double)
    assert one * (1 - 1e-9) <= two <= 2 * one * (1 + 1e-9)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("backward", [False, True])
def test_fused_beats_plain_for_long_sequences(name: str, backward: bool) -> None:
    fused = Attention(4, 2048, 16, 128, form="flash", backward=backward)
    plain = Attention(4, 2048, 16, 128, form="plain", backward=backward)
    # xformers' kernel on cards that FlashAttention does not run on is half as fast as FlashAttention 2 is elsewhere
    least = 1.4 if DEVICES[name].usual_attention == "cutlass" else 2
    assert kernel_seconds(DEVICES[name], plain) > least * kernel_seconds(DEVICES[name], fused)


# Sanity windows around the rates the YAML names, not a validation: the shares were chosen from
# the same few public figures. arXiv 2307.08691 states 50 to 73 % of peak on A100.
@pytest.mark.parametrize(
    ("name", "head_size", "backward", "low", "high"),
    [
        ("a100-sxm4-80gb", 128, False, 185, 228),
        ("a100-sxm4-80gb", 64, False, 160, 200),
        ("a100-sxm4-80gb", 128, True, 165, 197),
        ("h100-sxm", 128, False, 330, 375),
        ("h100-sxm", 64, False, 280, 330),
        ("h100-sxm", 64, True, 260, 300),
        ("mi250x-gcd", 64, False, 35, 88),
        ("mi250x-gcd", 64, True, 45, 63),
    ],
)
def test_flash_rates(name: str, head_size: int, backward: bool, low: float, high: float) -> None:
    form: AttentionForm = "flash2" if name == "h100-sxm" else "flash"  # there the usual one is cuDNN's
    attention = Attention(1, 16384, 2048 // head_size, head_size, form, backward=backward)
    assert low < rate(DEVICES[name], attention) < high


def test_short_sequences_waste_part_of_the_mask() -> None:
    device = DEVICES["a100-sxm4-80gb"]
    short, long = Attention(16, 1024, 16, 128), Attention(1, 16384, 16, 128)
    # forward and backward of FlashAttention 2 at 1,024 and 16,384 tokens, its README: 133 and 189 TFLOP/s
    assert rate(device, short) / rate(device, long) == pytest.approx(133 / 189, rel=0.05)


def test_few_heads_leave_units_idle() -> None:
    device = DEVICES["h100-sxm"]
    assert rate(device, Attention(1, 2048, 2, 128)) < 0.5 * rate(device, Attention(8, 2048, 16, 128))


# GELU of fp16 elements: read and written once. github PrincetonUniversity/LLMCompass ae/figure5,
# 1e9 elements per second; smaller sizes there are bounded by the CPU's launches.
@pytest.mark.parametrize(
    ("name", "elements", "giga_elements_per_second", "tolerance"),
    [
        ("a100-sxm", 536870912, 390.3, 0.25),  # the slowest of three public sources
        ("a100-sxm", 134217728, 360.2, 0.25),
        ("mi210", 536870912, 154.4, 0.1),
    ],
)
def test_gelu(name: str, elements: int, giga_elements_per_second: float, tolerance: float) -> None:
    seconds = kernel_seconds(DEVICES[name], Memory(4.0 * elements))
    assert elements / seconds / 1e9 == pytest.approx(giga_elements_per_second, rel=tolerance)


# Layer norm and softmax of (rows, columns) in fp16, same source. The measured times include the
# launch by the CPU, 13 to 52 us, so large sizes only.
@pytest.mark.parametrize(
    ("name", "kind", "giga_elements_per_second"),
    [
        ("a100-sxm", "norm/normalize", 385.8),
        ("a100-sxm", "loss/sum", 278.8),
        ("mi210", "norm/normalize", 104.1),
        ("mi210", "loss/sum", 88.0),
    ],
)
def test_norm_and_softmax(name: str, kind: str, giga_elements_per_second: float) -> None:
    elements = 32768 * 4096
    seconds = kernel_seconds(DEVICES[name], Memory(4.0 * elements), kind=kind)
    assert elements / seconds / 1e9 == pytest.approx(giga_elements_per_second, rel=0.5)  # public sources differ so


def test_kinds_of_memory_bound_work_have_rates_of_their_own() -> None:
    """Shares of peak that public tables give: norm backward of PyTorch on A100 0.35, element-wise work 0.87."""
    device, size = DEVICES["a100-sxm4-80gb"], 1e9
    for kind, share in (("bwd/norm/gradient", 0.35), ("", 0.87)):
        seconds = kernel_seconds(device, Memory(size), kind=kind) - device.kernel_latency_seconds
        assert size / seconds == pytest.approx(share * device.memory_bandwidth_bytes_per_second, rel=1e-6)
    twice = device.model_copy(
        update={"memory_bandwidth_bytes_per_second": Parameter(2 * device.memory_bandwidth_bytes_per_second)}
    )
    one, two = (kernel_seconds(d, Memory(1e12), kind="bwd/norm/gradient") for d in (device, twice))
    assert two == pytest.approx(one / 2, rel=1e-3)


@needs_table
@pytest.mark.parametrize(
    ("device", "kernel", "limit"),
    [
        *(("a100-sxm4-80gb", kernel, 0.07) for kernel in ("flash1", "flash2", "triton", "cutlass")),
        *(("h100-sxm", kernel, 0.08) for kernel in ("flash1", "flash2", "flash3", "cudnn", "triton2")),
    ],
)
def test_attention_by_kernel(device: str, kernel: str, limit: float) -> None:
    found = fit_attention.errors(DEVICES[device], kernel, fit_attention.read_rows(TABLE)[device, kernel])
    assert len(found) > 20
    assert np.median(np.abs(found)) < limit
    assert abs(np.median(found)) < 0.05


def test_a_kernel_without_rates_is_refused() -> None:
    with pytest.raises(ValueError, match="no rates of flash3 on a100-sxm4-80gb; it has flash2"):
        kernel_seconds(DEVICES["a100-sxm4-80gb"], Attention(1, 128, 1, 64, "flash3"))


@given(devices, st.floats(0, 1e12), st.integers(1, 20))
def test_memory_work_has_a_floor_and_a_ceiling(device: Device, size: float, kernels: int) -> None:
    seconds = kernel_seconds(device, Memory(size, kernels))
    assert seconds >= kernels * device.kernel_latency_seconds
    assert seconds >= size / device.memory_bandwidth_bytes_per_second
    assert kernel_seconds(device, Memory(2 * size, 2 * kernels)) == pytest.approx(2 * seconds)


def test_small_kernels_reach_a_smaller_share() -> None:
    device = DEVICES["h200"]
    rates = [size / kernel_seconds(device, Memory(size)) for size in (1e4, 1e6, 1e8, 1e10)]
    assert rates == sorted(rates)
    assert rates[0] < 0.01 * rates[-1]


def test_optimizer_arithmetic_counts_when_memory_does_not() -> None:
    device = DEVICES["cpu-core"]
    assert kernel_seconds(device, Memory(8.0, flops=1e9)) > 1e9 / device.peak_flops_per_second


def test_every_kind_with_a_share_of_its_own_is_one_that_schedules_have() -> None:
    """A kind that is misspelt would silently run at the rate of element-wise work."""
    kinds = {
        kind_of_work(work.work, op.phase)
        for name in ("axes data z y x", "axes y", "fused swiglu", "fused rotary", "llama", "sharded", "plain attention")
        for _, op in generate(JOBS[name]).named()
        if isinstance(op, Compute) and not isinstance(op.kernel, Gemm)
        for work in ((op.kernel,) if isinstance(op.kernel, Memory) else op.kernel.between)
    }
    eight = {"quantize/fp8", "bwd/quantize/fp8"}  # megatron's
    of_other_strategies = {"collect", "rotary/chain", FUSED, *eight}  # Hugging Face's layers, Megatron's loss
    for device in DEVICES.values():
        assert set(device.memory_shares) <= kinds | of_other_strategies, device.name


@pytest.mark.parametrize("phase", ["fwd", "bwd"])
@pytest.mark.parametrize("name", GPUS)
def test_swiglu_fused_by_the_compiler_is_never_slower_than_in_steps(name: str, phase: Literal["fwd", "bwd"]) -> None:
    """It moves half as many bytes."""
    job, device = JOBS["llama"], DEVICES[name]
    seconds = []
    for fused in (True, False):
        option = job.model_copy(update={"fused_elementwise": fused})
        kernel = activation(option, 8192, 2 * 14336, 14336, backward=phase == "bwd")
        seconds.append(kernel_seconds(device, kernel, kind=measured_kind(device, kernel, phase)))
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize("name", GPUS)
def test_layers_in_steps_take_longer_than_single_kernels_on_every_device(name: str) -> None:
    """Where a device named no rate of the chains they ran at that of one kernel, and faster than a norm of one."""
    job, device, elements = JOBS["llama"], DEVICES[name], 8192 * 4096
    pairs: list[tuple[Memory, Memory, Phase]] = [
        (norm_in_steps(job, elements), norm(job, elements), "fwd"),
        (norm_gradient_in_steps(job, elements), norm_gradient(job, elements), "bwd"),
        (rotary_in_steps(job, elements), rotary(job, elements, 8192), "fwd"),
    ]
    for chain, single, phase in pairs:
        seconds = [
            kernel_seconds(device, kernel, kind=measured_kind(device, kernel, phase)) for kernel in (chain, single)
        ]
        assert seconds[0] > 2 * seconds[1], chain.work


@pytest.mark.parametrize(("kernel", "share"), [("norm", 0.07), ("gradient", 0.04), ("rotary", 0.09)])
def test_layers_in_steps_reach_what_was_measured_on_a100(kernel: str, share: float) -> None:
    device, job, elements = DEVICES["a100-sxm4-80gb"], JOBS["llama"].model_copy(update={"precision": "bf16"}), 10**9
    chain = {"norm": norm_in_steps, "gradient": norm_gradient_in_steps, "rotary": rotary_in_steps}[kernel](
        job, elements
    )
    ideal = (3 if kernel == "gradient" else 2) * elements * 2
    assert ideal / kernel_seconds(device, chain) == pytest.approx(
        share * device.memory_bandwidth_bytes_per_second, rel=0.01
    )


@pytest.mark.parametrize(
    ("width", "forward", "full"), [(8192, 137.1, 502.6), (16384, 267.0, 971.5), (32768, 527.5, 1912.1)]
)
def test_swiglu_in_one_kernel_takes_what_was_measured(width: int, forward: float, full: float) -> None:
    """Liger-Kernel's benchmark of 8,192 tokens on H100, in us.

    `full` sums the output besides, and copies its gradient, which is one number: y.sum().backward().
    """
    device, job = DEVICES["h100-sxm"], JOBS["fused swiglu"].model_copy(update={"precision": "bf16"})
    kernels = [activation(job, 8192, 2 * width, width, backward=backward) for backward in (False, True)]
    there, back = (
        kernel_seconds(device, kernel, kind=measured_kind(device, kernel, phase)) * 1e6
        for kernel, phase in zip(kernels, ("fwd", "bwd"), strict=True)
    )
    besides = 2 * kernel_seconds(device, Memory(8192.0 * width * 2)) * 1e6
    assert there == pytest.approx(forward, rel=0.06)
    assert there + back + besides == pytest.approx(full, rel=0.06)


@pytest.mark.parametrize("form", ["flash", "fused_softmax", "plain"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_mask_is_read_and_nothing_is_left_out_for_it(form: str, backward: bool) -> None:
    plain, masked = (Attention(2, 4096, 16, 128, form, backward=backward, mask=mask) for mask in (False, True))
    assert masked.bytes - plain.bytes == 2 * 4096**2 * 2  # once for all heads, two bytes a score
    assert masked.flops == plain.flops
    for device in (DEVICES["a100-sxm4-80gb"], DEVICES["h100-sxm"]):
        if form == "flash":  # FlashAttention takes no mask
            plain = replace(plain, form="cutlass" if device.usual_attention == "flash2" else "cudnn")
        times = kernel_seconds(device, masked) / kernel_seconds(device, plain)
        # of a long window a causal kernel computes half
        if form == "plain" and backward:  # the gradient of a sum passes the mask: a kernel less
            assert 0.7 < times < 1.0
        else:
            assert (1.7 < times < 2.0) if form == "flash" else (1.0 < times < 1.5)


@pytest.mark.parametrize(
    ("device", "shape", "kernel"),
    [
        ("a100-sxm4-80gb", {}, "flash2"),
        ("a100-sxm4-80gb", {"mask": True}, "cutlass"),
        ("a100-sxm4-80gb", {"element_bytes": 4}, "cutlass"),
        ("a100-sxm4-80gb", {"head_size": 256}, "flash2"),
        ("a100-sxm4-80gb", {"head_size": 320}, "cutlass"),
        ("rtx-4090", {"mask": True}, "cutlass"),
        ("h100-sxm", {}, "cudnn"),
        ("gh200-96gb", {}, "cudnn"),
        ("h100-sxm", {"mask": True}, "cudnn"),
        ("h100-sxm", {"head_size": 192}, "flash2"),
        ("h100-sxm", {"head_size": 192, "form": "cudnn"}, "cudnn"),
        ("h200", {"element_bytes": 4}, "cutlass"),
        ("h100-sxm", {"element_bytes": 4}, "cudnn"),  # whose rates stand for cutlass's, of which there are none
        ("b200", {"head_size": 256}, "flash2"),
        ("mi250x-gcd", {"mask": True}, "ck"),
        ("v100-sxm2-32gb", {"head_size": 256}, "cutlass"),
        ("cpu-core", {"element_bytes": 4, "mask": True}, "flash"),
    ],
)
def test_attention_is_done_by_the_kernel_that_takes_its_shape(device: str, shape: dict[str, Any], kernel: str) -> None:
    """As `sdp_utils.cpp` of PyTorch has it."""
    attention = replace(Attention(2, 4096, 16, 128, "flash"), **shape)
    assert attention_name(DEVICES[device], attention) == kernel


def test_deterministic_and_published_attention_is_not_cudnns(make_job: Any) -> None:
    """PyTorch has none of cuDNN's that is deterministic, and took none when the 4D algorithm was published."""
    model = {"layers": 2, "hidden": 4096, "heads": 32, "sequence": 4096, "vocabulary": 1000}
    named: list[dict[str, Any]] = [{"attention": "flash2"}, {"train": {"deterministic": True}}, {"published": True}]
    jobs = [make_job({"z": 4}, "alps", model=model, **each) for each in ({}, *named)]
    usual, *others = (report(simulate(job)).compute_seconds for job in jobs)
    assert usual < 0.99 * others[0]
    assert others == pytest.approx([others[0]] * 3)
