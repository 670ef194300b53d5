"""What other strategies' software costs the host: found again in made-up measurements, and counted in a step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.calibrate.test_calibrate import measurements, read
from twin.calibrate import machine_from
from twin.engine.simulate import simulate
from twin.schedule.ops import Start
from twin.strategies import load_job, strategy_of

pytest.importorskip("scipy")

PLAIN_SECONDS = 40e-6
ISSUE = {"four_d": 50e-6, "fsdp2": 900e-6, "dtensor": 300e-6}
COPY_START, COPY_RATE = 30e-6, 25e9
MODEL = {"layers": 2, "hidden": 64, "heads": 2, "sequence": 32, "vocabulary": 256}
TORCH = {"strategy": "megatron", "flavour": "torch"}
JOBS: dict[str, dict[str, Any]] = {
    "fsdp2": {"strategy": "fsdp", "grid": {"weights": 2}},
    "hybrid": {"strategy": "fsdp", "grid": {"data": 2, "weights": 2}},
    "dtensor": {**TORCH, "grid": {"tensor": 2}},
    "both": {**TORCH, "grid": {"tensor": 2, "data": 2}},
    "megatron": {"strategy": "megatron", "grid": {"tensor": 2, "data": 2}},
    "deepspeed": {"strategy": "fsdp", "flavour": "deepspeed", "grid": {"weights": 2}},
    "four_d": {"grid": {"z": 2, "y": 2}},
}


def with_software(data: dict[str, Any]) -> dict[str, Any]:
    """Add what the strategies' processes would have found."""
    rows = []
    for hidden, ops in ((64, 70), (128, 75), (256, 80)):
        for software, collectives in {"plain": 2, "four_d": 40, "fsdp2": 11, "dtensor": 15}.items():
            between = ops * PLAIN_SECONDS + collectives * ISSUE.get(software, 0.0)
            kernels = [
                {
                    "busy": 8,
                    "name": name,
                    "phase": "fwd",
                    "work": work,
                    "bytes": hidden * 1e4,
                    "flops": 0.0,
                    "shape": [],
                    "launches": 1,
                    "seconds": COPY_START + hidden * 1e4 / COPY_RATE,
                    "spread": 0.0,
                    "repeats": 5,
                }
                for name, work in (("copy_out", "copy"), ("gelu", "gelu"))
            ]
            rows.append(
                {
                    "busy": 8,
                    "software": software,
                    "hidden": hidden,
                    "ops": ops,
                    "collectives": collectives,
                    "seconds_between": between,
                    "spread": 0.0,
                    "kernels": kernels,
                }
            )
    return {**data, "software": rows}


def test_what_issuing_costs_is_found():
    device = read(machine_from(with_software(measurements()))).device
    assert device.collective_host_seconds == pytest.approx(ISSUE["four_d"])
    assert device.issue.fsdp2_seconds == pytest.approx(ISSUE["fsdp2"])
    assert device.issue.dtensor_seconds == pytest.approx(ISSUE["dtensor"])
    assert device.issue.by("deepspeed") is None


def test_copies_that_only_others_do_are_found_and_the_rest_stays():
    before = read(machine_from(measurements())).device.kernels
    after = read(machine_from(with_software(measurements()))).device.kernels
    assert set(after) - set(before) == {"copy"}
    assert after["copy"].start_seconds == pytest.approx(COPY_START, rel=0.02)
    assert after["copy"].rate_bytes_per_second == pytest.approx(COPY_RATE, rel=0.02)
    assert after["gelu"].start_seconds == before["gelu"].start_seconds


def test_measurements_from_before_are_read():
    device = read(machine_from(measurements())).device
    assert device.collective_host_seconds is None
    assert (device.issue.fsdp2_seconds, device.issue.dtensor_seconds) == (None, None)


def described(name: str, *changes: str) -> Any:
    ranks = 1
    for size in JOBS[name]["grid"].values():
        ranks *= size
    raw = {"model": MODEL, "machine": "laptop", "ranks": ranks, "batch": {"sequences": 4, "micro_sequences": 1}}
    return load_job({**raw, **JOBS[name]}, ["recompute=false", *changes])


def started(name: str, software: str) -> int:
    """Collectives that a step starts by a software, from the schedule."""
    job = described(name)
    strategy = strategy_of(job)
    (role,) = strategy.roles(job)
    by = strategy.issued_by(job)
    ops = strategy.schedule(job, role).flat()
    ops = strategy.schedule(job, role).flat()
    return sum(isinstance(op, Start) and by.get(op.communicator) == software for op, _ in ops)


@pytest.mark.parametrize(
    ("name", "software"),
    [("fsdp2", "fsdp2"), ("hybrid", "fsdp2"), ("dtensor", "dtensor"), ("both", "fsdp2"), ("both", "dtensor")],
)
def test_a_step_takes_longer_by_what_its_collectives_cost_the_core(name, software):
    """With free messages: what the core works is all there is."""
    free = "machine.device.collective_host=0 s"
    without = simulate(described(name, free, f"machine.device.issue.{software}=0 s"))
    longer = simulate(described(name, free, f"machine.device.issue.{software}=10 ms"))
    number = started(name, software)
    assert number > 0
    # as many ranks as there are share the cores, and each has to issue its own
    assert longer.step_seconds - without.step_seconds >= 0.9 * number * 10e-3


@pytest.mark.parametrize("name", ["megatron", "deepspeed", "four_d"])
def test_who_starts_collectives_without_them_pays_nothing(name):
    dear = ("machine.device.issue.fsdp2=10 ms", "machine.device.issue.dtensor=10 ms")
    assert simulate(described(name, *dear)).step_seconds == simulate(described(name)).step_seconds
