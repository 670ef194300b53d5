"""How far a step may be off: each term's error, and that of the software beside it."""

from __future__ import annotations

from math import hypot

import pytest

from twin.engine.interval import interval
from twin.engine.simulate import simulate
from twin.schedule.kernels import Attention, Gemm

ERRORS = {"gemm": 0.139, "attention": 0.16, "memory": 0.15}
SOFTWARE = 0.07


def seconds_by_kind(simulation) -> dict[str, float]:
    """Kernels one after the other, as on a device that waits for nobody."""
    found = dict.fromkeys(ERRORS, 0.0)
    for part in simulation.parts:
        for seconds, (op, _) in zip(part.program.amount, part.program.ops, strict=True):
            kernel = getattr(op, "kernel", None)
            kind = "gemm" if isinstance(kernel, Gemm) else "attention" if isinstance(kernel, Attention) else "memory"
            found[kind] += seconds
    return found


def test_without_communication_it_is_the_sum_of_what_kernels_may_be_off(make_job) -> None:
    off = ("slowest_device=false", "machine.device.host=0 us", "machine.variation.device_speed_spread=0")
    job = make_job(machine="perlmutter", per_rank=2, overrides=off)
    base = simulate(job)
    kinds = seconds_by_kind(base)
    assert all(kinds.values())
    assert base.step_seconds == pytest.approx(sum(kinds.values()))
    found = interval(job)
    for sign, bound in ((-1, found.low), (1, found.high)):
        expected = sum(s * (1 + sign * hypot(ERRORS[kind], SOFTWARE)) for kind, s in kinds.items())
        assert bound == pytest.approx(expected, rel=1e-9)


def test_it_holds_the_prediction(make_job) -> None:
    job = make_job({"data": 2, "z": 4, "y": 2, "x": 2}, "frontier", per_rank=4)
    found = interval(job)
    assert found.low < simulate(job).step_seconds < found.high


@pytest.mark.parametrize(("key", "usual", "more"), [("compute_slowdown", 0.4, 2.0), ("device_speed_spread", 0.5, 0.8)])
def test_its_pessimistic_end_is_not_better_than_the_machine_itself(make_job, key, usual, more) -> None:
    """A machine that is slowed down more than what the pessimistic end assumes of usual ones keeps its own."""
    ends = [
        interval(make_job({"z": 8}, per_rank=2, overrides=(f"machine.variation.{key}={value}",))).high
        for value in (usual, more)
    ]
    assert ends[0] < ends[1]
