"""A machine whose constants are known, and what measuring it would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml

from twin.calibrate import machine_from, network
from twin.calibrate.constants import library
from twin.cost.gemm import gemm_seconds
from twin.cost.kernels import kernel_seconds
from twin.description.device import CoreLibrary, CoreProducts, Device
from twin.description.load import load_device, load_machine
from twin.description.machine import Machine
from twin.description.parameter import Parameter
from twin.schedule.kernels import Attention, Gemm, Mode

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
    "exchange_call": 600e-6,
    "exchange_message": 70e-6,
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
TURN = 4e-3
ISSUE = 60e-6
"""Of starting a collective, beside what it takes of a core itself."""


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
    sharing.append({"work": "turn", "busy": ranks, "hosts": 4, "seconds": seen(TURN)})
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
        "exchanges": "all-to-all within a host",
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
    """Add collectives of every layout, timed on the known machine, and counted where all ranks are at work."""
    rng = np.random.default_rng(2)
    machine = read(machine_from(data))
    made = library(LIBRARY, data["exchange_bytes"], cores=True)
    rows = [
        {
            "kind": kind,
            "inner": inner,
            "size": size,
            "groups": groups,
            "bytes": bytes_,
            "seconds": 1.0,
            "busy_core_seconds": 1.0,
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
        counted = case.ranks == data["ranks"]
        row["busy_core_seconds"] = network.used(case, made) * error + ISSUE if counted else None
    software = [
        {"software": name, "hidden": 64, "ops": 10, "collectives": started, "seconds_between": 1e-3 + started * ISSUE}
        for name, started in (("plain", 0), ("four_d", 5))
    ]
    return {**data, "collectives": rows, "software": [{**row, "kernels": []} for row in software]}


def read(text: str) -> Machine:
    raw = yaml.safe_load(text)
    raw["libraries"] = {
        name: value if isinstance(value, dict) else load_machine("laptop").libraries["gloo"]
        for name, value in raw["libraries"].items()
    }
    return Machine.model_validate(raw)
