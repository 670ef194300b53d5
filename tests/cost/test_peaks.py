"""Nothing that computes is faster than the device can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.cost.kernels import kernel_seconds
from twin.description.device import Device
from twin.description.load import load_device, names
from twin.description.parameter import Parameter
from twin.schedule.kernels import Attention, Gemm

DEVICES = {name: load_device(name) for name in names("devices")}
devices = st.sampled_from(sorted(DEVICES)).map(DEVICES.__getitem__)


@given(
    devices,
    st.builds(
        Attention,
        sequences=st.integers(1, 64),
        sequence_length=st.integers(1, 70_000),
        heads=st.integers(1, 128),
        head_size=st.integers(1, 8192),
        form=st.sampled_from(["flash", "fused_softmax", "plain"]),
        dropout=st.booleans(),
        backward=st.booleans(),
        element_bytes=st.sampled_from([2, 4]),
        mask=st.booleans(),
    ),
    st.none() | st.tuples(*[st.floats(0.01, 1.0)] * 2, st.floats(0.2, 2.0), st.floats(0.0, 500.0)),
)
def test_no_attention_runs_above_the_peak(
    device: Device, kernel: Attention, rates: tuple[float, float, float, float] | None
) -> None:
    """On devices as they are, and with any kernel's rates; heads of 1,024 ran at 1.2 of an H100's peak.

    What has to be computed are the scores on and below the diagonal, or all where a mask is read; backward 2.5 times
    as much.
    """
    if rates is not None and device.attention:
        names = ("forward_share", "backward_share", "narrow_ratio", "half_length")
        changed = {name: Parameter(value) for name, value in zip(names, rates, strict=True)}
        models = {name: model.model_copy(update=changed) for name, model in device.attention.items()}
        device = device.model_copy(update={"attention": models})
    if kernel.form == "flash" and device.usual_attention not in device.attention:
        return
    rows = kernel.sequence_length
    scores = float(rows**2) if kernel.mask else rows * (rows + 1) / 2
    least = 4.0 * kernel.sequences * kernel.heads * kernel.head_size * scores * (2.5 if kernel.backward else 1.0)
    if kernel.form != "flash":
        least = kernel.flops  # nothing is skipped
    peak = device.peak_flops_per_second * (device.gemm.fp32_share if kernel.element_bytes == 4 else 1.0)
    assert least / kernel_seconds(device, kernel) <= peak * (1 + 1e-9)


def test_wider_heads_than_kernels_have_are_as_fast_as_the_widest() -> None:
    device = DEVICES["h100-sxm"]
    seconds = [kernel_seconds(device, Attention(4, 8192, 2048 // size, size, "flash3")) for size in (256, 512, 2048)]
    # as much work, in fewer heads
    assert seconds == pytest.approx([seconds[0]] * 3, rel=0.02)


@given(
    devices,
    st.builds(
        Gemm,
        *[st.integers(1, 40_000)] * 3,
        mode=st.sampled_from(["TN", "NN", "NT"]),
        batch=st.integers(1, 64),
        element_bytes=st.sampled_from([1, 2, 4]),
    ),
    st.booleans(),
)
def test_no_product_runs_above_the_peak(device: Device, product: Gemm, tuned: bool) -> None:
    wide = {1: 1.0, 2: 1.0, 4: float(device.gemm.fp32_share)}[product.element_bytes]
    if product.element_bytes == 1:
        if device.gemm.eight_bits is None:
            return
        wide = float(device.gemm.eight_bits.peak_ratio)
    seconds = kernel_seconds(device, product, tuned=tuned)
    assert product.flops / seconds <= wide * device.peak_flops_per_second
