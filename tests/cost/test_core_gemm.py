"""Products on a CPU core, against sums done by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from twin.cost.core_gemm import core_gemm_seconds, with_library
from twin.cost.gemm import gemm_seconds
from twin.description.device import CoreProducts
from twin.description.load import load_device
from twin.schedule.kernels import Gemm


def number(value: Any) -> dict[str, Any]:
    return {"value": value, "kind": "assumed", "source": "TEST: by hand"}


SMALL = {"call": number("10 us"), "peak_share": number(0.5)}
LARGE = {
    "least_multiplications": 1_000_000,
    "least_size": 16,
    "call": number("60 us"),
    "peak_share": number(1.0),
    "columns": number("4 GB/s"),
}
CORE: dict[str, Any] = {"operands": number("20 GB/s"), "libraries": {"small": SMALL, "large": LARGE}}
PEAK = 200e9
SIZES = st.integers(1, 512)


def core(**changes: Any) -> CoreProducts:
    return CoreProducts.model_validate(CORE | changes)


def test_a_small_product_is_a_call_its_operands_and_its_arithmetic():
    gemm = Gemm(64, 32, 16, "NT", element_bytes=4)
    moved = 4 * (64 * 16 + 16 * 32 + 64 * 32) / 20e9
    assert core_gemm_seconds(core(), PEAK, gemm) == pytest.approx(10e-6 + moved + 2 * 64 * 32 * 16 / 100e9)


def test_a_large_one_goes_to_the_second_library_which_copies_columns():
    gemm = Gemm(200, 100, 50, "TN", element_bytes=4, adds=True)
    moved = 4 * (200 * 50 + 50 * 100 + 2 * 200 * 100) / 20e9
    plain = 60e-6 + moved + 2e6 / 200e9
    assert core_gemm_seconds(core(), PEAK, gemm) == pytest.approx(plain)
    turned = Gemm(200, 100, 50, "NT", element_bytes=4, adds=True)
    assert core_gemm_seconds(core(), PEAK, turned) == pytest.approx(plain + 4 * 200 * 50 / 4e9)


def test_products_of_attention_stay_with_the_first():
    gemm = Gemm(128, 128, 128, "NT", batch=8, element_bytes=4)
    expected = 10e-6 + 8 * 3 * 4 * 128**2 / 20e9 + 8 * 2 * 128**3 / 100e9
    assert core_gemm_seconds(core(), PEAK, gemm) == pytest.approx(expected)


@pytest.mark.parametrize("gemm", [Gemm(4096, 4096, 8, "NT", element_bytes=4), Gemm(256, 256, 256, "NT")])
def test_so_do_thin_ones_and_those_of_16_bits(gemm):
    expected = 10e-6 + gemm.bytes / 20e9 + gemm.flops / 100e9
    assert core_gemm_seconds(core(), PEAK, gemm) == pytest.approx(expected)


@given(m=SIZES, n=SIZES, k=SIZES, factor=st.floats(1.0, 10.0))
def test_more_of_a_resource_is_never_slower(m, n, k, factor):
    gemm = Gemm(m, n, k, "NT", element_bytes=4)
    before = core_gemm_seconds(core(), PEAK, gemm)
    assert core_gemm_seconds(core(), factor * PEAK, gemm) <= before
    assert core_gemm_seconds(core(operands=number(20e9 * factor)), PEAK, gemm) <= before


def test_a_device_with_it_has_no_use_for_tiles():
    device = load_device("cpu-core")
    measured = device.model_copy(update={"gemm": device.gemm.model_copy(update={"core": core()})})
    gemm = Gemm(256, 256, 256, element_bytes=4)
    assert gemm_seconds(measured, gemm) == core_gemm_seconds(core(), device.peak_flops_per_second, gemm)
    assert gemm_seconds(device, gemm) != gemm_seconds(measured, gemm)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"libraries": {}}, "libraries"),
        ({"libraries": {"large": LARGE}}, "large 1000000.*one must be 1"),
        ({"libraries": {"one": SMALL, "other": SMALL}}, "must differ"),
        ({"libraries": {"small": SMALL | {"peak_share": number(0)}}}, "peak_share"),
        ({"libraries": {"small": SMALL | {"peak_share": number(1.5)}}}, "1.5 is a share"),
        ({"libraries": {"small": SMALL, "large": LARGE | {"columns": number("0 GB/s")}}}, "columns"),
        ({"operands": number("0 GB/s")}, "operands"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        core(**changes)


def test_a_job_that_asks_for_pytorchs_products_pays_for_them():
    device = load_device("cpu-core")
    measured = device.model_copy(update={"gemm": device.gemm.model_copy(update={"core": core()})})
    gemm = Gemm(2000, 1000, 500, "TN", element_bytes=4)
    assert with_library(measured, "auto") is measured
    assert with_library(measured, "onednn") is measured
    assert with_library(device, "pytorch") is device
    expected = core_gemm_seconds(core(libraries={"small": SMALL}), device.peak_flops_per_second, gemm)
    asked = gemm_seconds(with_library(measured, "pytorch"), gemm)
    assert asked == expected > gemm_seconds(measured, gemm)
