"""A power cap is kept in the mean of a device that computes, with what links draw beside its kernels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_held_power import JOBS, class_power, energy_of
from tests.profiles import examples
from twin.cost.power import capped_clock
from twin.engine.capped import work_of
from twin.engine.energy import step_energy
from twin.engine.priced import Priced
from twin.engine.simulate import simulate
from twin.strategies import load_job

MODEL: dict[str, Any] = {"layers": 4, "hidden": 4096, "heads": 32, "sequence": 4096, "vocabulary": 32000}


@examples(0.15)
@given(
    st.sampled_from(list(JOBS)),
    st.sampled_from([("frontier", 300), ("dgx-h100", 450), ("dgx-h100", 300), ("perlmutter", 220)]),
    st.sampled_from(["folded", "des"]),
)
def test_the_mean_of_the_ranks_that_draw_most_is_at_the_cap(name: str, where: tuple[str, int], engine: str) -> None:
    """Brute force over all moments of each rank: no clock but the full one leaves watts unused, and none is above."""
    machine, cap = where
    machine = JOBS[name].get("machine", machine)
    energy = energy_of(name, machine, engine=engine, power_cap=f"{cap} W")
    most = 0.0
    for part in energy.simulation.parts:
        for row in range(len(part.classes)):
            seconds, watts, computes = class_power(energy, part, row)
            most = max(most, float(seconds[computes] @ watts[computes] / seconds[computes].sum()))
    assert most <= cap * 1.002
    assert energy.simulation.clock == 1.0 or most >= cap * 0.98


def fsdp(nic: str, **options: Any) -> Any:
    raw = {
        "model": MODEL,
        "machine": {"extends": "dgx-h100", "nic": {"bandwidth": nic}},
        "strategy": "fsdp",
        "ranks": 64,
        "grid": {"data": 64},
        "batch": {"sequences": 128, "micro_sequences": 1},
        "power_cap": "500 W",
        **options,
    }
    return load_job(raw)


def by_kernels(job: Any) -> float:
    """The clock at which kernels alone draw what the cap allows."""
    device = job.machine.device
    works = [work_of(program, device, device.power) for program in Priced.of(job).programs]
    return min(capped_clock(device.power, work, job.power_cap_watts) for work in works)


def test_links_that_work_longer_leave_kernels_less() -> None:
    """Over slow NICs gathers run beside all of the computation: its mean was 16 % above a cap."""
    fast, slow = fsdp("400 Gbit/s"), fsdp("40 Gbit/s")
    assert simulate(slow).clock < simulate(fast).clock - 0.02
    assert by_kernels(slow) == pytest.approx(by_kernels(fast))


@pytest.mark.parametrize("cap", [500, 300, 230, 200])
@pytest.mark.parametrize("rate", [400, 150, 100, 75, 50, 25, 10])
def test_the_mean_is_at_the_cap_however_long_links_work(cap: int, rate: int) -> None:
    """Where collectives just fill the computation, what links draw falls with the clock nearly as kernels' watts do."""
    job = fsdp(f"{rate} Gbit/s", power_cap=f"{cap} W")
    simulation = simulate(job)
    energy = step_energy(simulation)
    assert energy is not None
    most = float(energy.active_watts_of_classes(0).max())
    assert most == pytest.approx(cap, rel=4e-3)
    assert simulation.clock <= by_kernels(job) * (1 + 1e-9)


def test_where_nothing_is_sent_links_take_nothing() -> None:
    one = fsdp("400 Gbit/s", ranks=1, grid={"data": 1}, batch={"sequences": 2, "micro_sequences": 1})
    assert simulate(one).clock == pytest.approx(by_kernels(one))
    assert simulate(one).clock < 1.0
