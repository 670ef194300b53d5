"""Energy: the step's is the sum of its ops', power over time integrates to it; a cap does what published ones did."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cost.gemm import gemm_seconds
from twin.cost.power import Work, capped_clock, mean_watts, memory_watts, unit_watts
from twin.description.load import load_device, load_machine, names
from twin.description.parameter import Parameter
from twin.description.power import Power
from twin.description.problems import DescriptionError
from twin.engine.all_ranks import simulate_ranks
from twin.engine.bill import bill, missing
from twin.engine.energy import step_energy
from twin.engine.power_over_time import Ops, PowerOverTime, Segments
from twin.engine.report import report, report_all_ranks
from twin.engine.simulate import simulate
from twin.schedule.kernels import Gemm, Memory
from twin.schedule.ops import Compute
from twin.strategies import load_job

MODEL: dict[str, Any] = {"layers": 3, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024}
V100_CAPS = {225: (1.02, 0.95), 200: (1.05, 0.87), 175: (1.09, 0.82), 150: (1.15, 0.76), 125: (1.25, 0.73)}
A40_CAPS = {
    275: (1.01, 0.96),
    250: (1.02, 0.91),
    225: (1.03, 0.84),
    200: (1.08, 0.80),
    175: (1.20, 0.79),
    150: (1.64, 0.91),
}
"""Watts: time and energy over those uncapped, medians over networks of github ml-energy/zeus (traces of NSDI '23)."""
A40_CLOCKS = {1200: (0.12739, 28.491), 1050: (0.13935, 27.167), 960: (0.14946, 28.084), 855: (0.16441, 29.053)}
A40_FULL = (0.11407, 33.489)
"""MHz: seconds and joules of GPT-3's forward pass on an A40 (github ml-energy/zeus, sosp24_data); at 1,440 MHz, which
is what the limit of 300 W leaves of it, `A40_FULL`."""


def described(machine: str | dict[str, Any] = "dgx-h100", **options: Any) -> Any:
    raw = {
        "model": MODEL,
        "machine": machine,
        "ranks": 8,
        "grid": {"z": 4, "y": 2},
        "batch": {"sequences": 8, "micro_sequences": 1},
        **options,
    }
    return load_job(raw)


@examples(0.3)
@given(
    st.sampled_from(["frontier", "dgx-h100", "perlmutter"]),
    st.sampled_from([{"data": 8}, {"z": 4, "y": 2}, {"x": 4, "data": 2}]),
    st.booleans(),
    st.sampled_from([None, "250 W"]),
)
def test_a_step_s_joules_are_those_of_its_ops_and_of_the_context(machine, grid, straggler, cap) -> None:
    options = {"stragglers": [{"rank": 3, "slowdown": 1.4}]} if straggler else {}
    options |= {} if cap is None else {"power_cap": cap}
    simulation = simulate(described(machine, grid=grid, batch={"sequences": 16, "micro_sequences": 1}, **options))
    energy = step_energy(simulation)
    assert energy is not None
    ranks = np.bincount(simulation.partition.rank_class)
    by_op = float(ranks @ energy.op_joules(0).sum(axis=1))
    context = 8 * energy.power.context_watts * simulation.step_seconds
    assert energy.joules == pytest.approx(by_op + context, rel=1e-9)
    assert energy.joules == pytest.approx(float(ranks @ energy.rank_joules()), rel=1e-9)
    moments, watts = energy.over_time
    assert float(np.diff(moments) @ watts[:-1]) == pytest.approx(energy.joules, rel=1e-9)
    assert moments[-1] == pytest.approx(simulation.step_seconds)
    assert energy.mean_watts <= energy.peak_watts
    assert watts.min() >= 8 * energy.power.context_watts * (1 - 1e-9)


def test_power_is_the_same_in_stretches_and_its_peak_is_its_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = simulate(described("frontier", stragglers=[{"rank": 3, "slowdown": 1.4}]))
    whole = step_energy(simulation)
    assert whole is not None
    moments, watts = whole.over_time
    assert whole.peak_watts == watts[:-1].max()
    monkeypatch.setattr("twin.engine.power_over_time.MAX_DRAWING", 50)
    cut = step_energy(simulation)
    assert cut is not None
    assert len(list(cut.drawn.pieces())) > 5
    for one, other in zip(cut.over_time, (moments, watts), strict=True):
        np.testing.assert_array_equal(one, other)
    assert cut.peak_watts == whole.peak_watts


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
@examples(0.5)
def test_the_peak_lasts_longer_than_times_are_rounded(things, at_once, chance) -> None:
    """Begins and ends in whole seconds, each a few units in the last place off; brute force adds them up between."""
    end = max(begin + seconds for begin, seconds, _ in things)

    def off(time: float) -> float:
        return time * (1.0 + chance.randint(-8, 8) * 2.0**-52)

    things.sort()
    draws = [Ops(*(np.array([of]) for of in (off(b), off(n), float(watts)))) for b, n, watts in things]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twin.engine.power_over_time.MAX_DRAWING", at_once)
        peak = PowerOverTime(draws, 2.0, 2.0 + sum(w for _, _, w in things), float(end)).peak_watts
    between = [2.0 + sum(w for b, n, w in things if b <= at < b + n) for at in range(end)]
    assert peak == pytest.approx(max(between), rel=1e-12)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 9), min_size=6, max_size=9), st.lists(st.integers(0, 30), min_size=1, max_size=6)
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 40),
)
@examples(0.5)
def test_the_peak_of_segments_is_found_though_no_more_is_looked_for_once_it_is_reached(segments, at_once) -> None:
    """Each draws other watts in every second, whenever it begins; brute force adds up the seconds of the step."""
    draws, drawn = [], np.full(64, 2.0)
    for levels, begins in segments:
        changes = np.diff(np.array(levels, dtype=float), prepend=0.0, append=0.0)
        draws.append(Segments(np.sort(np.array(begins, dtype=float)), np.arange(len(levels) + 1.0), changes))
        for begin in begins:
            drawn[begin : begin + len(levels)] += levels
    most = 2.0 + sum(max(levels) * len(begins) for levels, begins in segments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twin.engine.power_over_time.MAX_DRAWING", at_once)
        found = PowerOverTime(draws, 2.0, most, float(len(drawn)))
        assert found.peak_watts == pytest.approx(drawn.max(), rel=1e-12)
        assert found.bound_watts >= drawn.max() * (1 - 1e-12)


def test_every_engine_draws_the_same() -> None:
    job = described("frontier")
    folded, every = simulate(job), simulate(job, engine="des")
    first, second = step_energy(folded), step_energy(every)
    assert first is not None
    assert second is not None
    assert first.joules == pytest.approx(second.joules, rel=1e-9)
    ranks = report_all_ranks(simulate_ranks(job, random=False))
    assert ranks.energy_joules == pytest.approx(first.joules, rel=1e-6)


def test_a_cap_lengthens_products_alone_and_is_kept() -> None:
    job, capped = (described(cuda_graphs=True, **options) for options in ({}, {"power_cap": "300 W"}))
    plain, slower = simulate(job), simulate(capped)
    energy = step_energy(slower)
    assert energy is not None
    assert slower.clock < 1.0 < slower.step_seconds / plain.step_seconds
    assert energy.active_watts == pytest.approx(300.0, rel=0.05)
    phases = zip(plain.program.ops, plain.program.amount, slower.program.amount, strict=True)
    for (op, _), before, after in phases:
        if isinstance(op, Compute):
            factor = 1.0 if isinstance(op.kernel, Memory) else 1.0 / slower.clock
            assert after == pytest.approx(before * factor)


def power_of(device: str, **watts: float) -> Power:
    power = load_device(device).power
    assert power is not None
    return power.model_copy(update={f"{key}_watts": Parameter(value) for key, value in watts.items()})


def test_clocks_of_a40_draw_what_was_measured_of_gpt_3() -> None:
    """Forward passes at locked clocks; 60 % of the time goes with the clock, as measured."""
    power, full = power_of("a40"), A40_FULL[1] / A40_FULL[0]
    units = full - power.context_watts - 0.5 * power.memory_watts
    work = [Work(0.6, units, 0.5 * power.memory_watts, True), Work(0.4, units, 0.5 * power.memory_watts, False)]
    for clock, (seconds, joules) in A40_CLOCKS.items():
        share = clock / 1440
        slower = 0.6 / share + 0.4
        assert slower == pytest.approx(seconds / A40_FULL[0], rel=0.05)
        assert mean_watts(power, work, share) == pytest.approx(joules / seconds, rel=0.06)


@pytest.mark.parametrize(
    ("device", "limit", "caps", "products", "units", "most_time"),
    [("v100-sxm2-32gb", 190.0, V100_CAPS, 0.3, 0.8, 0.05), ("a40", 210.0, A40_CAPS, 0.5, 0.6, 0.06)],
)
def test_caps_of_zeus(device, limit, caps, products, units, most_time) -> None:
    """Small networks, of whose time so much goes with the clock, drawing what theirs drew uncapped (240 and 270 W)."""
    power = power_of(device, products=limit)
    work = [
        Work(products, limit, 0.4 * power.memory_watts, True),
        Work(1 - products, units * limit, 0.9 * power.memory_watts, False),
    ]
    uncapped = mean_watts(power, work)
    for cap, (time, energy) in caps.items():
        clock = capped_clock(power, work, cap)
        longer = products / clock + 1 - products
        assert longer == pytest.approx(time, rel=most_time)
        assert longer * mean_watts(power, work, clock) / uncapped == pytest.approx(energy, rel=0.08)


def test_what_is_not_given_is_not_known() -> None:
    found = bill(described(), 3.6e6, 10.0, 100.0)
    assert found["joules_per_token"] == 3.6e4
    assert [found[key] for key in ("nodes_joules", "facility_joules", "carbon_kg", "cost")] == [None] * 4
    given = {"node": "1 kW", "pue": 1.5, "grams_per_kwh": 475, "price_per_kwh": 0.2}
    whole = bill(described(energy=given), 3.6e6, 10.0, 100.0)
    joules = 1.5 * (3.6e6 + 1e4)
    assert whole["facility_joules"] == pytest.approx(joules)
    assert whole["carbon_kg"] == pytest.approx(joules / 3.6e6 * 0.475)
    assert whole["cost"] == pytest.approx(joules / 3.6e6 * 0.2)


def test_of_devices_at_their_limit_no_facility_is_billed() -> None:
    """As `simulate` and studies have it; `search` billed what no device was known to draw."""
    given = {"node": "1 kW", "pue": 1.5, "grams_per_kwh": 475, "price_per_kwh": 0.2}
    job = described(energy=given, machine={"extends": "dgx-h100", "device": {"extends": "h100-sxm", "power": None}})
    found = bill(job, 3.6e6, 10.0, 100.0)
    assert found["boundary"] == "devices"
    assert [found[key] for key in ("nodes_joules", "facility_joules", "carbon_kg", "cost")] == [None] * 4
    assert "machine.device.power" in missing(job)[0]


def test_pue_without_nodes_makes_no_facility() -> None:
    assert bill(described(energy={"pue": 1.5}), 1.0, 1.0, 1.0)["facility_joules"] is None


def test_slack_is_none_where_nobody_waits() -> None:
    job = described(ranks=1, grid={"data": 1}, batch={"sequences": 1, "micro_sequences": 1}, cuda_graphs=True)
    energy = step_energy(simulate(job))
    assert energy is not None
    clock, saved = energy.slack()
    assert clock == pytest.approx(1.0)
    assert saved == pytest.approx(0.0, abs=1e-6 * energy.joules)


def test_unknown_watts_are_not_printed_as_numbers() -> None:
    figures = report(simulate(described("alps", ranks=4, grid={"z": 4}, batch={"sequences": 4, "micro_sequences": 1})))
    assert figures.energy is None


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        ("alps", {"power_cap": "300 W"}, "does not say what it draws by kind of work"),
        ("dgx-h100", {"power_cap": "100 W"}, "is no more than the 121.7 W that h100-sxm draws while it waits"),
        ("dgx-h100", {"power_cap": "300 J"}, "is not a unit of power"),
        ("dgx-h100", {"energy": {"pue": 0.5}}, "energy.pue = 0.5"),
        ("dgx-h100", {"energy": {"intensity": 5}}, "energy.intensity"),
    ],
)
def test_impossible_inputs_are_refused(machine, options, message) -> None:
    with pytest.raises(DescriptionError, match=message.replace(".", r"\.")):
        described(machine, **options)


def test_a_cap_that_no_clock_keeps_is_refused_with_the_watts_that_are_left() -> None:
    """At a tenth of its clock an H100 drew 161 W under a cap of 130 W, and that step was shown as one of 130 W."""
    with pytest.raises(DescriptionError, match=r"power_cap.* at 10% of its clock h100-sxm still draws") as refused:
        simulate(described(power_cap="130 W"))
    found = re.search(r"draws ([\d.]+) W", str(refused.value))
    assert found is not None
    least = float(found[1])
    assert least > 130
    energy = step_energy(simulate(described(power_cap=f"{least + 1:.0f} W")))
    assert energy is not None
    assert energy.active_watts <= least + 1.5


@pytest.mark.parametrize("machine", names())
def test_large_products_draw_no_more_than_the_device_s_limit(machine: str) -> None:
    """An H100 limited to 500 W drew 616 W, as the one of 700 W that it extends; a sustained rate is that of a limit."""
    device = load_machine(machine).device
    if device.power is None:
        return
    product = Gemm(8192, 8192, 8192)
    seconds = gemm_seconds(device, product)
    works = [
        Work(seconds, unit_watts(device.power, product), memory_watts(device, device.power, product, seconds), True)
    ]
    assert mean_watts(device.power, works) <= device.busy_watts


def test_a_lower_limit_is_not_taken_with_the_watts_of_a_higher_one() -> None:
    with pytest.raises(DescriptionError, match=r"power\.products: with the context's .* 661\.7 W, more than busy 500"):
        described({"extends": "dgx-h100", "device": {"busy": "500 W"}})


def test_of_every_rank_by_itself_nodes_carbon_and_money_are_known_too(make_job: Any) -> None:
    """As of the folded step, and what waiting for the slower ones adds: the context's watts for so long."""
    inputs = {"node": "600 W", "pue": 1.03, "grams_per_kwh": 400, "price_per_kwh": 0.1, "currency": "EUR"}
    job = make_job({"data": 2, "z": 8}, "frontier", energy=inputs)
    every = simulate_ranks(job)
    folded, found = report(simulate(job)).energy, report_all_ranks(every).energy
    assert folded is not None
    assert found is not None
    assert set(folded) - set(found) == {"by_kind", "peak_watts", "active_watts_per_device", "slack"}
    power = job.machine.device.power
    assert power is not None
    longer = every.step_seconds - simulate(job).step_seconds
    devices = folded["devices_joules"] + 16 * power.context_watts * longer
    facility = (devices + 2 * 600 * every.step_seconds) * 1.03
    assert (found["devices_joules"], found["facility_joules"]) == (pytest.approx(devices), pytest.approx(facility))
    assert (found["carbon_kg"], found["cost"]) == (
        pytest.approx(facility / 3.6e6 * 0.4),
        pytest.approx(facility / 3.6e6 * 0.1),
    )
