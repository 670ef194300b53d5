"""A machine whose constants are known is measured without noise, or with some: the fit must find it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from twin.calibrate import machine_from, network
from twin.calibrate.compute import product_of
from twin.calibrate.solve import fit, line
from twin.cost.gemm import gemm_seconds
from twin.cost.kernels import kernel_seconds
from twin.description.device import CoreLibrary, CoreProducts, Device
from twin.description.load import load_device, load_machine
from twin.description.machine import Machine
from twin.description.parameter import Parameter
from twin.description.problems import DescriptionError
from twin.schedule.kernels import Attention, Gemm, Mode

pytest.importorskip("scipy")

LIBRARY = {
    "base": 120e-6,
    "local_hop": 60e-6,
    "network_hop": 250e-6,
    "direct_base": 80e-6,
    "message": 20e-6,
    "network_message": 45e-6,
    "ring_efficiency": 0.93,
    "direct_efficiency": 0.8,
    "local_efficiency": 0.6,
    "core_call": 150e-6,
    "core_message": 15e-6,
    "local_rate": 1.5e9,
    "network_rate": 0.9e9,
    "reduce_rate": 4e9,
    "gather_effort": 1.3,
    "scatter_effort": 1.6,
}
RATES = {
    ("gelu", "fwd"): (6e-6, 7e9),
    ("norm/gradient", "bwd"): (15e-6, 30e9),
    ("optimizer/adamw", "optimizer"): (9e-5, 50e9),
}
PASSES: tuple[tuple[str, Mode], ...] = (("forward", "TN"), ("weight_gradient", "NT"))
LEAST = 1_000_000
"""Multiplications from which on the second library is taken."""
HOST, MOST, HALF = 40e-6, 90e-6, 1.5e6
"""From op to op with warm caches, how much longer with cold ones, and behind how many bytes half of that."""
SIZES = (1 << 10, 1 << 15, 1 << 18, 1 << 20, 1 << 23)
NIC, PORT = 48e6, 4e9
CORES = 2.0


def device() -> Device:
    """The CPU core that is to be found again."""
    base = load_device("cpu-core")
    small = CoreLibrary(call_seconds=Parameter(5e-6), peak_share=Parameter(0.4))
    large = CoreLibrary(
        least_multiplications=LEAST,
        least_size=16,
        call_seconds=Parameter(40e-6),
        peak_share=Parameter(0.9),
        columns_bytes_per_second=Parameter(3e9),
    )
    core = CoreProducts(operands_bytes_per_second=Parameter(8e9), libraries={"pytorch": small, "onednn": large})
    gemm = base.gemm.model_copy(update={"core": core})
    rates = {"forward_share": Parameter(0.5), "backward_share": Parameter(0.45)}
    attention = {"flash": base.attention["flash"].model_copy(update=rates)}
    return base.model_copy(update={"gemm": gemm, "attention": attention})


def measurements(noise: float = 0.0, ranks: int = 8, per_host: int = 2) -> dict[str, Any]:
    """What `fourfold calibrate` would have written on that machine."""
    rng = np.random.default_rng(1)
    made = device()

    def seen(seconds: float) -> float:
        return float(seconds * np.exp(noise * rng.standard_normal()))

    gemm = [
        {
            "pass": pass_,
            "mode": mode,
            "m": m,
            "n": n,
            "k": k,
            "element_bytes": 4,
            "busy": ranks,
            "spread": 0.0,
            "seconds": seen(gemm_seconds(made, Gemm(m, n, k, mode, element_bytes=4))),
        }
        for pass_, mode in PASSES
        for m in (64, 256, 1024)
        for n in (32, 128, 512, 1024)
        for k in (32, 256, 768)
    ]
    one = {"x": 1, "y": 1, "z": 1, "data": 1}
    kernels = [
        {
            "name": name,
            "phase": phase,
            "work": "" if name == "between" else name.removeprefix("optimizer/"),
            "bytes": 0.0 if name == "between" else size,
            "flops": 0.0,
            "shape": [],
            "tokens": round(size),
            "hidden": 1,
            "grid": one,
            "busy": ranks,
            "repeats": 10,
            "seconds": seen(seconds),
        }
        for size in (2e4, 2e5, 1e6, 5e6, 2e7)
        for (name, phase), seconds in {
            **{kind: start + size / rate for kind, (start, rate) in RATES.items()},
            ("between", ""): HOST + MOST * size / (size + HALF),
        }.items()
    ]
    attention = [
        {
            "sequences": 2,
            "sequence_length": s,
            "heads": 4,
            "head_size": h,
            "form": "flash",
            "backward": back,
            "busy": ranks,
            "seconds": seen(kernel_seconds(made, Attention(2, s, 4, h, backward=back, element_bytes=4))),
        }
        for s in (128, 256, 1024)
        for h in (32, 64, 128)
        for back in (False, True)
    ]
    sharing = [
        {"work": "gemm", "busy": busy, "hosts": on, "seconds": seen(2e-3 * max(1.0, busy / CORES))}
        for busy, on in ((1, 1), (2, 1), (2, 2), (4, 4), (8, 4))
    ]
    messages = [
        {"same_host": same, "bytes": size, "seconds": seen(start + size / rate)}
        for same, start, rate in ((True, 60e-6, PORT), (False, 90e-6, NIC))
        for size in (8, 1024, 262144, 1 << 20, 1 << 22)
    ]
    return {
        "schema": 2,
        "name": "known",
        "date": "2026-11-20T12:00:00+00:00",
        "device": "a core",
        "device_type": "cpu",
        "cpu": "a core",
        "device_memory_bytes": 16 << 30,
        "backend": "gloo",
        "exchange_bytes": 262144,
        "ranks": ranks,
        "ranks_per_host": per_host,
        "gemm_library": "onednn",
        "gemm_least_multiplications": LEAST,
        "gemm_least_size": 16,
        "gemm": gemm,
        "kernels": kernels,
        "attention": attention,
        "sharing": sharing,
        "host": [{"ops": 10, "collectives": 0, "seconds": 1e-3, "seconds_inside_ops": 5e-4, "spread": 0.0}],
        "point_to_point": messages,
        "overlap": [],
        "collectives": [],
    }


def with_collectives(data: dict[str, Any], noise: float = 0.0) -> dict[str, Any]:
    """Add collectives of every layout, timed on the known machine."""
    rng = np.random.default_rng(2)
    machine = read(machine_from(data))
    made = network.library(LIBRARY, data["exchange_bytes"], cores=True)
    rows = [
        {
            "kind": kind,
            "inner": inner,
            "size": size,
            "groups": groups,
            "bytes": bytes_,
            "seconds": 1.0,
            "core_seconds": 1.0,
        }
        for inner, size in ((1, 2), (2, 2), (4, 2), (1, 4), (2, 4), (1, 8))
        for groups in sorted({1, data["ranks"] // size})
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
        for bytes_ in SIZES
    ]
    timed = network.cases({**data, "collectives": rows}, machine)
    for row, case in zip(rows, timed, strict=True):
        error = float(np.exp(noise * rng.standard_normal()))
        row["seconds"] = network.seconds(case, made, machine) * error
        row["core_seconds"] = network.used(case, made) * error
    return {**data, "collectives": rows}


def read(text: str) -> Machine:
    raw = yaml.safe_load(text)
    raw["libraries"] = {
        name: value if isinstance(value, dict) else load_machine("laptop").libraries["gloo"]
        for name, value in raw["libraries"].items()
    }
    return Machine.model_validate(raw)


@pytest.fixture(scope="module")
def exact() -> tuple[dict[str, Any], Machine]:
    data = with_collectives(measurements())
    return data, read(machine_from(data))


def test_cores_and_links_are_found(exact):
    _, machine = exact
    assert machine.cores is not None
    assert machine.cores.count == pytest.approx(CORES)
    assert machine.cores.shared_by == "machine"
    assert machine.nic.bandwidth_bytes_per_second == pytest.approx(NIC, rel=0.01)
    assert machine.fabric.port_bandwidth_bytes_per_second == pytest.approx(PORT, rel=0.01)
    assert (machine.nodes, machine.devices_per_node) == (4, 2)


def test_the_host_is_found_with_warm_caches_and_with_cold_ones(exact):
    _, machine = exact
    cold = machine.device.cold_host
    assert cold is not None
    assert machine.device.host_seconds == pytest.approx(HOST, rel=0.02)
    assert cold.most_seconds == pytest.approx(MOST, rel=0.02)
    assert cold.half_bytes == pytest.approx(HALF, rel=0.05)


def test_rates_of_kernels_are_found(exact):
    _, machine = exact
    kinds = {
        "gelu": ("gelu", "fwd"),
        "bwd/norm/gradient": ("norm/gradient", "bwd"),
        "adamw": ("optimizer/adamw", "optimizer"),
    }
    assert set(machine.device.kernels) == set(kinds)
    for kind, key in kinds.items():
        start, rate = RATES[key]
        assert machine.device.kernels[kind].start_seconds == pytest.approx(start, rel=0.02)
        assert machine.device.kernels[kind].rate_bytes_per_second == pytest.approx(rate, rel=0.02)


def test_products_of_other_shapes_come_out(exact):
    _, machine = exact
    for m, n, k in ((96, 64, 96), (192, 64, 96), (512, 2048, 384), (2048, 96, 1536)):
        for _, mode in PASSES:
            gemm = Gemm(m, n, k, mode, element_bytes=4)
            assert gemm_seconds(machine.device, gemm) == pytest.approx(gemm_seconds(device(), gemm), rel=0.01)
    assert machine.device.gemm.core is not None
    least = {name: one.least_multiplications for name, one in machine.device.gemm.core.libraries.items()}
    assert least == {"pytorch": 1, "onednn": LEAST}


def test_measurements_of_one_library_give_one():
    core = read(machine_from({**measurements(), "gemm_library": "pytorch"})).device.gemm.core
    assert core is not None
    assert set(core.libraries) == {"pytorch"}
    assert core.libraries["pytorch"].columns_bytes_per_second is None


@pytest.mark.parametrize("change", [{"gemm_library": None}, {"gemm_least_size": None}])
def test_measurements_that_do_not_say_who_multiplied_are_refused(change):
    with pytest.raises(DescriptionError, match=r"gemm_library.*measured again"):
        machine_from({**measurements(), **change})


def test_weight_gradients_of_a_step_are_stored_by_columns():
    rows = [{"name": name, "shape": [64, 32, 16]} for name in ("mlp_up/weight_gradient", "qkv/gemm")]
    assert [product_of(row, 4).mode for row in rows] == ["NT", "TN"]
    assert product_of(rows[0], 4).flops == 2 * 64 * 32 * 16


def test_collectives_come_out(exact):
    data, machine = exact
    for case in network.cases(data, machine):
        found = network.seconds(case, machine.libraries["gloo"], machine)
        assert found == pytest.approx(case.seconds, rel=0.05), case
    for case, row in zip(network.cases(data, machine), data["collectives"], strict=True):
        core_seconds = network.used(case, machine.libraries["gloo"])
        assert core_seconds == pytest.approx(row["core_seconds"], rel=0.05), case


def test_noise_moves_the_constants_little_and_is_told():
    data = with_collectives(measurements(noise=0.05), noise=0.05)
    text = machine_from(data)
    machine = read(text)
    assert machine.nic.bandwidth_bytes_per_second == pytest.approx(NIC, rel=0.1)
    assert machine.device.gemm.core is not None
    assert machine.device.gemm.core.libraries[
        "onednn"
    ].peak_share * machine.device.peak_flops_per_second == pytest.approx(0.9 * device().peak_flops_per_second, rel=0.1)
    assert "±" in text
    assert "kind: calibrated" in text
    assert "products 72 rows" in machine.caveat


def test_ranks_with_devices_of_their_own_share_no_cores():
    data = measurements()
    for row in data["sharing"]:
        row["seconds"] = 2e-3
    assert read(machine_from(data)).cores is None


def test_hosts_of_their_own_share_cores_within_each():
    data = measurements()
    for row in data["sharing"]:
        row["seconds"] = 2e-3 * max(1.0, row["busy"] / row["hosts"] / 1.25)
    cores = read(machine_from(data)).cores
    assert cores is not None
    assert (cores.shared_by, float(cores.count)) == ("node", pytest.approx(1.25))


@pytest.mark.parametrize("change", [{"schema": 1}, {"gemm": []}, {"sharing": None}])
def test_foreign_measurements_are_refused(change):
    with pytest.raises(DescriptionError, match=next(iter(change))):
        machine_from({**measurements(), **change})


def test_a_line_is_found_in_spite_of_outliers():
    amounts = [1e3 * 2**i for i in range(12)]
    seconds = [3e-6 + a / 5e9 for a in amounts]
    seconds[4] *= 4
    start, rate, quality = line(amounts, seconds)
    assert (start.value, rate.value) == (pytest.approx(3e-6, rel=0.05), pytest.approx(5e9, rel=0.05))
    assert quality.rows == 12


def test_what_no_row_tells_has_no_error_that_looks_good():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    fitted, _ = fit(lambda c: c["a"] * x + 0 * c["b"], 3 * x, {"a": 1.0, "b": 1.0})
    assert fitted["a"].value == pytest.approx(3.0)
    assert fitted["b"].error == np.inf
