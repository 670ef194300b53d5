"""A machine whose constants are known is measured without noise, or with some: the fit must find it again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.calibrate.known_machine import (
    CORES,
    HALF,
    HOST,
    LEAST,
    MOST,
    NIC,
    PASSES,
    PORT,
    RATES,
    TURN,
    device,
    measurements,
    read,
    with_collectives,
)
from twin.calibrate import machine_from
from twin.calibrate.compute import product_of
from twin.calibrate.solve import fit, line
from twin.cost.gemm import gemm_seconds
from twin.description.problems import DescriptionError
from twin.schedule.kernels import Gemm

pytest.importorskip("scipy")


def test_cores_and_links_are_found(exact):
    _, machine = exact
    assert machine.cores is not None
    assert machine.cores.count == pytest.approx(CORES)
    assert machine.cores.shared_by == "machine"
    assert machine.cores.turn_seconds == pytest.approx(TURN)
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
