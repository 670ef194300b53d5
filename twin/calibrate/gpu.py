"""What a GPU's products and attention cost, and its way to the host, from what `fourfold calibrate` measured there.

Products and attention are fitted as those of published tables are (`fit_gemm`, `fit_attention`), in 16 bits; the rate
that the power limit sustains is measured by itself, for bursts do not tell it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from twin.calibrate import fit_attention, fit_gemm
from twin.calibrate.compute import in_company, is_product
from twin.calibrate.solve import Array, Fitted, Quality, fit, line
from twin.cost.gemm import gemm_seconds
from twin.description.device import Device
from twin.description.parameter import Parameter
from twin.schedule.kernels import Gemm

Data = Mapping[str, Any]
NARROW, WIDE = 2, 4
"""Bytes of a number."""
SUSTAINED = "sustained_share"
FP32 = "fp32_share"
FP32_BOUNDS = (0.005, 1.0)


def fit_products(base: Device, data: Data) -> tuple[Device, dict[str, Fitted], Quality]:
    """Fit the constants of `GemmModel`; returns the device with them, each by name, and the quality in 16 bits."""
    found: dict[str, Fitted] = {}
    device = base
    for row in data.get("sustained", ()):
        rate = 2.0 * row["m"] * row["n"] * row["k"] / row["seconds"]
        found[SUSTAINED] = Fitted(min(1.0, rate / base.peak_flops_per_second), 0.0, 1)
        device = _with(device, SUSTAINED, found[SUSTAINED].value)
    sizes = [(r["m"], r["n"], r["k"], r["seconds"]) for r in in_company(data["gemm"]) if r["element_bytes"] == NARROW]
    # in place, among other ops, they are met with colder caches than in a loop; but what is timed there between two
    # events takes microseconds longer, which tells in small ones
    inside = [row for row in in_company(data["kernels"]) if is_product(row) and row["flops"] >= fit_gemm.LARGE_FLOPS]
    sizes += [(*row["shape"], row["seconds"]) for row in inside]
    rows = fit_gemm.Rows(*np.array(sizes, dtype=float).T)
    device, table = fit_gemm.fit(device, rows, known=found)
    found |= {name: Fitted(value, error / value, len(sizes)) for name, (value, error) in table.items()}
    quality = Quality.of(1 + fit_gemm.errors(device, rows), np.ones(len(sizes)))
    if wide := [row for row in in_company(data["gemm"]) if row["element_bytes"] == WIDE]:
        found[FP32] = _fp32_share(device, wide)
        device = _with(device, FP32, found[FP32].value)
    return device, found, quality


def _fp32_share(device: Device, rows: list[Mapping[str, Any]]) -> Fitted:
    """Fit the peak of products in fp32."""
    products = [Gemm(row["m"], row["n"], row["k"], element_bytes=WIDE) for row in rows]

    def model(constants: Mapping[str, float]) -> Array:
        one = _with(device, FP32, constants[FP32])
        return np.array([gemm_seconds(one, product) for product in products])

    measured = np.array([float(row["seconds"]) for row in rows])
    fitted, _ = fit(model, measured, {FP32: float(device.gemm.fp32_share)}, bounds={FP32: FP32_BOUNDS})
    return fitted[FP32]


def _with(device: Device, name: str, value: float) -> Device:
    gemm = device.gemm.model_copy(update={name: Parameter(value, "calibrated", "fit")})
    return device.model_copy(update={"gemm": gemm})


def fit_kernels_of_attention(device: Device, data: Data) -> tuple[dict[str, dict[str, Fitted]], str, Quality]:
    """Fit each kernel of attention that was timed; returns its constants, the usual one's name, and the quality."""
    by_kernel: dict[str, list[fit_attention.Row]] = {}
    usual = device.usual_attention
    for row in in_company([row for row in data["attention"] if row["form"] == "flash"]):
        shape = row["sequences"], row["sequence_length"], row["heads"], row["head_size"]
        direction = "bwd" if row["backward"] else "fwd"
        made = fit_attention.Row(*shape, direction, causal=True, seconds=float(row["seconds"]))
        by_kernel.setdefault(row["kernel"], []).append(made)
        usual = row["kernel"] if row["usual"] else usual
    found, errors = {}, list[float]()
    for kernel, rows in by_kernel.items():
        fitted = fit_attention.fit(device, kernel, rows)
        missed = fit_attention.errors(fitted, kernel, rows)
        spread = float(np.median(np.abs(missed)))
        constants = {name: float(getattr(fitted.attention[kernel], name)) for name in fit_attention.START}
        found[kernel] = {name: Fitted(value, spread, len(rows)) for name, value in constants.items()}
        errors += missed.tolist()
    return found, usual, Quality.of(1 + np.array(errors), np.ones(len(errors)))


def host_link(data: Data) -> dict[str, Fitted]:
    """Find rates of the link up and down, and what starting a copy takes; nothing if it was not measured."""
    copies = {work: [r for r in data.get("tiers", ()) if r["work"] == work] for work in ("up", "down")}
    if not all(copies.values()):
        return {}
    fitted = {work: line([r["bytes"] for r in rows], [r["seconds"] for r in rows]) for work, rows in copies.items()}
    (start, up, _), (_, down, _) = fitted["up"], fitted["down"]
    return {"latency_seconds": start, "bandwidth_bytes_per_second": up, "down_bandwidth_bytes_per_second": down}


def host_rates(data: Data) -> dict[str, float]:
    """Return bytes per second of the host: of sums by one core and by all, and of copies that change types."""
    rates = {(row["work"], row["threads"]): row["bytes"] / row["seconds"] for row in data.get("tiers", ())}
    if not rates:
        return {}
    streams = {threads: rate for (work, threads), rate in rates.items() if work == "stream"}
    by = {work: rate for (work, _), rate in rates.items()}
    return {
        "memory_bandwidth": max([*streams.values(), by["update"]]),
        "core_bandwidth": streams[1],
        "converting_down": by["converting_down"],
        "converting_up": by["converting_up"],
    }
