"""The matrix-product model: bounds that always hold, and measured tables."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.calibrate.fit_gemm import LARGE_FLOPS, errors, read_rows, report
from twin.calibrate.unfilled import constants, with_empty_operands
from twin.cost.gemm import gemm_seconds, products_seconds
from twin.cost.kernels import kernel_seconds
from twin.description.device import Device
from twin.description.load import load_device, names
from twin.description.parameter import Parameter
from twin.schedule.kernels import Gemm, Memory

TABLE = Path(__file__).parents[3] / "shared" / "data" / "gemm.csv"
needs_table = pytest.mark.skipif(not TABLE.exists(), reason="../shared/data/gemm.csv is not here")

FILLED = TABLE.with_name("gemm-filled.csv")
GATED = TABLE.with_name("mlp-filled.csv")
DEVICES = {name: load_device(name) for name in names("devices")}
UNFILLED = {name: with_empty_operands(device) for name, device in DEVICES.items()}
"""As the older tables were measured, whose operands hold nothing."""
devices = st.sampled_from(sorted(DEVICES)).map(DEVICES.__getitem__)
sizes = st.one_of(st.integers(1, 40_000), st.sampled_from([64, 128, 257, 1024, 4096, 12288, 32768, 65536]))
gemms = st.builds(
    Gemm,
    m=sizes,
    n=sizes,
    k=sizes,
    mode=st.sampled_from(["NN", "NT", "TN"]),
    batch=st.integers(1, 64),
    element_bytes=st.sampled_from([2, 4]),
)

# device, m, n, k, microseconds. github ai-dynamo/aiconfigurator (Apache-2.0), bf16;
# github PrincetonUniversity/LLMCompass, fp16 (mi210, and a100-sxm from PyTorch without graphs).
PUBLISHED = [
    ("a100-sxm4-80gb", 2048, 4096, 4096, 305.23),
    ("a100-sxm4-80gb", 4096, 8192, 8192, 1978.11),
    ("a100-sxm4-80gb", 8192, 3072, 1024, 225.24),
    ("a100-sxm4-80gb", 2048, 65536, 4096, 3835.56),
    ("h100-sxm", 768, 4096, 4096, 34.49),
    ("h100-sxm", 2048, 3072, 1024, 19.99),
    ("h100-sxm", 1024, 4096, 16384, 151.62),
    ("h100-sxm", 8192, 12288, 12288, 3119.28),
    ("h200", 8192, 3072, 1024, 75.39),
    ("h200", 2304, 4096, 4096, 92.06),
    ("h200", 16384, 2048, 2048, 181.56),
    ("h200", 4096, 4096, 65536, 2698.2),
    ("a100-sxm", 4096, 12288, 12288, 4457.6),
    ("a100-sxm", 8192, 2048, 2048, 281.8),
    ("mi210", 1024, 12288, 12288, 2717.3),
    ("mi210", 8192, 4096, 4096, 2290.1),
    ("mi210", 8192, 2048, 2048, 582.2),
]


@given(devices, gemms)
def test_never_faster_than_peak_or_memory(device: Device, gemm: Gemm) -> None:
    seconds = gemm_seconds(device, gemm)
    peak = device.peak_flops_per_second * (device.gemm.fp32_share if gemm.element_bytes == 4 else 1)
    assert seconds >= gemm.flops / peak * (1 - 1e-12)
    assert seconds >= gemm.bytes / device.memory_bandwidth_bytes_per_second * (1 - 1e-12)
    assert np.isfinite(seconds)


@given(devices, gemms)
def test_twice_the_batch_costs_between_once_and_twice(device: Device, gemm: Gemm) -> None:
    twice = Gemm(gemm.m, gemm.n, gemm.k, gemm.mode, 2 * gemm.batch, gemm.element_bytes)
    one, two = gemm_seconds(device, gemm), gemm_seconds(device, twice)
    assert one * (1 - 1e-9) <= two <= 2 * one * (1 + 1e-9)


@given(devices, gemms)
def test_tuning_never_hurts(device: Device, gemm: Gemm) -> None:
    assert gemm_seconds(device, gemm, tuned=True) <= gemm_seconds(device, gemm, tuned=False)


@given(devices, sizes, sizes, sizes)
def test_layout_matters_only_where_listed(device: Device, m: int, n: int, k: int) -> None:
    times = {gemm_seconds(device, Gemm(m, n, k, mode), tuned=False) for mode in ("NN", "NT", "TN")}
    listed = any(k * 2 % slow.leading_dimension_bytes == 0 for slow in device.gemm.slow_layouts)
    assert len(times) == 1 or listed


def test_slow_layout_of_mi250x_is_published_and_tuning_avoids_it() -> None:
    device = DEVICES["mi250x-gcd"]
    gemm = Gemm(8192, 4096, 32768, "TN")
    slow, tuned = gemm_seconds(device, gemm, tuned=False), gemm_seconds(device, gemm)
    assert gemm.flops / slow == pytest.approx(0.06 * 191.5e12, rel=1e-6)  # arXiv 2502.08145
    assert 7 < slow / tuned < 11  # "nearly 8x"


@pytest.mark.parametrize(
    ("name", "flops_per_second"), [("mi250x-gcd", 125e12), ("gh200-96gb", 813e12), ("a100-sxm4-40gb", 280e12)]
)  # arXiv 2502.08145: empirical peaks of 32768 x 32768 products; what they hold is not said
def test_largest_product(name: str, flops_per_second: float) -> None:
    gemm = Gemm(32768, 32768, 32768, "NN")
    rate = gemm.flops / gemm_seconds(UNFILLED[name], gemm)
    assert rate == pytest.approx(flops_per_second, rel=0.04)


@pytest.mark.parametrize(("name", "m", "n", "k", "microseconds"), PUBLISHED)
def test_published_rows(name: str, m: int, n: int, k: int, microseconds: float) -> None:
    assert gemm_seconds(UNFILLED[name], Gemm(m, n, k)) * 1e6 == pytest.approx(microseconds, rel=0.25)


def test_published_rows_in_the_middle() -> None:
    found = [abs(gemm_seconds(UNFILLED[name], Gemm(m, n, k)) * 1e6 / us - 1) for name, m, n, k, us in PUBLISHED]
    assert np.median(found) < 0.06


LIMITS = {  # median, 90th percentile of the error where 2mnk >= 1e10, then below; percent
    "a100-sxm4-80gb": (5, 15, 8, 20),
    "h100-sxm": (6, 18, 6, 17),
    "h200": (6, 15, 7, 17),
    "a100-sxm": (5, 12, 20, 25),
    "mi210": (5, 10, 8, 12),
}


@needs_table
@pytest.mark.parametrize("name", LIMITS)
def test_measured_table(name: str) -> None:
    rows = read_rows(TABLE, name)
    found, large = 100 * np.abs(errors(UNFILLED[name], rows)), rows.flops >= LARGE_FLOPS
    median, high, small_median, small_high = LIMITS[name]
    assert np.median(found[large]) < median
    assert np.quantile(found[large], 0.9) < high
    assert np.median(found[~large]) < small_median
    assert np.quantile(found[~large], 0.9) < small_high


@needs_table
@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm", "h200"])
def test_small_model_shapes(name: str) -> None:
    rows = read_rows(TABLE, name)
    rows = rows.where(
        (rows.m >= 1024) & (rows.m <= 8192) & (rows.n <= 4096) & (rows.k <= 4096) & (rows.n >= 1024) & (rows.k >= 1024)
    )
    found = 100 * np.abs(errors(UNFILLED[name], rows))
    assert np.median(found) < 8
    assert np.quantile(found, 0.9) < 22


@needs_table
def test_operands_with_data() -> None:
    """Public timings with random operands: rows at hand, and each third left out in turn (`report`)."""
    rows = read_rows(FILLED, "h100-sxm")
    found, large = 100 * np.abs(errors(DEVICES["h100-sxm"], rows)), rows.flops >= LARGE_FLOPS
    assert large.sum() > 300
    assert np.median(found[large]) < 6
    assert np.quantile(found[large], 0.9) < 15
    assert np.median(found[~large]) < 20


@needs_table
def test_gated_mlps_that_were_timed_whole() -> None:
    """A100 SXM, forward (3 products and the activation), backward (6), or both."""
    device = DEVICES["a100-sxm4-80gb"]
    with GATED.open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["device"] == device.name and r["dtype"] == "bf16"]
    found = []
    for row in rows:
        m, n, k, products = (int(row[key]) for key in ("m", "n", "k", "products"))
        once = 2 * gemm_seconds(device, Gemm(m, n, k)) + gemm_seconds(device, Gemm(m, k, n))
        streams = {3: 3, 6: 5, 9: 8}[products]
        predicted = products / 3 * once + kernel_seconds(device, Memory(2.0 * streams * m * n))
        found.append(predicted / (float(row["microseconds"]) * 1e-6) - 1)
    assert len(found) > 15
    assert np.median(np.abs(found)) < 0.04
    assert np.quantile(np.abs(found), 0.9) < 0.08


@pytest.mark.parametrize("name", sorted(constants()))
def test_data_caps_large_products_and_touches_small_ones_less(name: str) -> None:
    large, small = Gemm(16384, 8192, 8192), Gemm(512, 1024, 1024)
    filled, empty = DEVICES[name], UNFILLED[name]
    sustained = filled.peak_flops_per_second * filled.gemm.sustained_share
    assert large.flops / gemm_seconds(filled, large) <= sustained * (1 + 1e-9)
    # the tables of H200 are of two releases of the library, of which the newer is 0.6 % faster in spite of its operands
    assert gemm_seconds(filled, large) >= (0.99 if name == "h200" else 1.0) * gemm_seconds(empty, large)
    if name.startswith("a100"):  # the tables of H100 are of two releases of the library besides
        assert gemm_seconds(filled, small) == pytest.approx(gemm_seconds(empty, small), rel=0.05)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_products_follow_the_peak(name: str) -> None:
    """Twice the peak is half the time, but for what is no arithmetic: launch, starts of tiles, memory."""
    device, gemm = DEVICES[name], Gemm(16384, 16384, 16384)
    twice = device.model_copy(update={"peak_flops_per_second": Parameter(2 * device.peak_flops_per_second)})
    assert gemm_seconds(twice, gemm) == pytest.approx(gemm_seconds(device, gemm) / 2, rel=0.12)


@needs_table
def test_shapes_left_out_are_predicted_as_well() -> None:
    pytest.importorskip("scipy")
    line = next(x for x in report(DEVICES["mi210"], read_rows(TABLE, "mi210")) if "third" in x)
    assert float(line.split("median ")[1].split(" %")[0]) < 10


@given(devices, gemms)
def test_wider_results_are_never_quicker(device: Device, gemm: Gemm) -> None:
    wide = replace(gemm, result_bytes=2 * gemm.element_bytes)
    assert gemm_seconds(device, wide) >= gemm_seconds(device, gemm) * (1 - 1e-12)


def test_each_tile_writes_its_results_in_their_own_width() -> None:
    """A tile of 128 by 256 on each of 132 units, k of 64: in fp32 a tile has twice as many bytes to write as in bf16.

    Memory is taken away, so that a tile's own time is all there is.
    """
    device = DEVICES["h100-sxm"].model_copy(update={"memory_bandwidth_bytes_per_second": Parameter(1e18)})
    model = device.gemm.model_copy(update={"tiles": ((128, 256),), "splits": (1,)})
    device = device.model_copy(update={"gemm": model})
    narrow = Gemm(128 * 12, 256 * 11, 64)
    writing = 128 * 256 * 2 / (device.peak_flops_per_second / model.units * model.write_bytes_per_flop)
    grown = gemm_seconds(device, replace(narrow, result_bytes=4)) - gemm_seconds(device, narrow)
    assert grown == pytest.approx(writing)


@pytest.mark.skipif(not FILLED.exists(), reason="../shared/data/gemm-filled.csv is not here")
def test_large_products_of_eight_bits() -> None:
    """DeepGEMM's and ml-engineering's rows on Hopper with long sums, to which nothing is fitted."""
    with FILLED.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] in {"h800", "h100-sxm"} and "fp8" in row["dtype"]]
    sizes = [tuple(int(row[size]) for size in "mnk") for row in rows]
    large = [
        (float(row["microseconds"]), Gemm(m, n, k, element_bytes=1, result_bytes=2))
        for row, (m, n, k) in zip(rows, sizes, strict=True)
        if k >= 4096 and 2 * m * n * k >= LARGE_FLOPS and m >= 1024
    ]
    assert len(large) >= 3
    for microseconds, gemm in large:
        assert gemm_seconds(DEVICES["h100-sxm"], gemm) * 1e6 == pytest.approx(microseconds, rel=0.15)


@given(devices, st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=5))
@examples(0.3)
def test_many_at_once_equal_one_at_a_time(device: Device, shapes: list[tuple[int, int, int]]) -> None:
    if device.gemm.slow_layouts:
        return
    m, n, k = np.array(shapes, dtype=float).T
    one = [gemm_seconds(device, Gemm(*shape)) for shape in shapes]
    np.testing.assert_allclose(products_seconds(device, m, n, k), one, rtol=1e-12)


def test_more_units_are_not_slower_for_many_tiles() -> None:
    device, gemm = DEVICES["a100-sxm4-80gb"], Gemm(8192, 8192, 8192)
    half = device.gemm.model_copy(update={"units": Parameter(54.0)})
    slower = device.model_copy(update={"gemm": half, "peak_flops_per_second": device.peak_flops_per_second / 2})
    assert gemm_seconds(slower, gemm) == pytest.approx(2 * gemm_seconds(device, gemm), rel=0.1)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_source_begins_with_a_listed_name(name: str) -> None:
    def parameters(spec: object) -> list[Parameter]:
        if isinstance(spec, Parameter):
            return [spec]
        if isinstance(spec, tuple):
            return [p for part in spec for p in parameters(part)]
        if isinstance(spec, dict):
            return [p for part in spec.values() for p in parameters(part)]
        fields = getattr(type(spec), "model_fields", {})
        return [p for field in fields for p in parameters(getattr(spec, field))]

    device = DEVICES[name]
    found = parameters(device)
    assert len(found) > 25
    for parameter in found:
        assert parameter.source.split(" ")[0].rstrip(",:;") in device.sources, parameter.source
    texts = [parameter.source for parameter in found]
    for name in device.sources:
        assert any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in texts), name


def test_impossible_numbers_are_refused() -> None:
    raw = DEVICES["mi210"].model_dump(by_alias=True)
    raw["reserved_memory"] = {"value": "70 GiB", "kind": "assumed", "source": "x"}
    with pytest.raises(ValueError, match="reserved_memory"):
        Device.model_validate(raw)
    raw["elementwise_efficiency"] = {"value": 1.5, "kind": "assumed", "source": "x"}
    with pytest.raises(ValueError, match=r"1\.5 is a share"):
        Device.model_validate(raw)
