"""The all-ranks engine against the SimPy engine, event by event."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_folding import RELATIVE, jobs
from tests.profiles import examples
from twin.description.job import Job
from twin.engine import pricing
from twin.engine.all_ranks import cube_of_job, drawn, simulate_ranks
from twin.engine.differences import differences
from twin.engine.report import report
from twin.engine.simulate import simulate


def without_cores(chosen: dict[str, Any]) -> dict[str, Any]:
    """The engine refuses ranks that share cores."""
    machine = chosen["machine"]
    if isinstance(machine, dict):
        machine = {k: v for k, v in machine.items() if k not in ("cores", "libraries")}
    return {**chosen, "machine": machine}


def same_without_chance(job: Job) -> None:
    """With nothing drawn it gives every event of the folded engine, shared links included."""
    folded = simulate(job)
    every = simulate_ranks(job, nominal=folded, record=range(job.ranks), random=False)
    for what in ("start", "end", "arrival"):
        expected = getattr(folded.timeline, what)[folded.partition.rank_class]
        got = getattr(every.outcome.recorded, what)
        np.testing.assert_allclose(got, expected, rtol=RELATIVE, atol=1e-15, err_msg=what)
    assert every.step_seconds == pytest.approx(folded.step_seconds, rel=RELATIVE)
    figures = report(folded)
    assert every.outcome.compute.mean() == pytest.approx(
        figures.compute_seconds + figures.slowest_device_wait_seconds, rel=1e-9
    )


@given(chosen=jobs())
@examples(0.4, derandomize=True)
def test_without_chance_it_is_the_folded_engine(make_job, chosen) -> None:
    same_without_chance(make_job(**without_cores(chosen)))


@pytest.mark.slow
@given(chosen=jobs())
@examples(4, derandomize=True)
def test_without_chance_it_is_the_folded_engine_in_many_jobs(make_job, chosen) -> None:
    same_without_chance(make_job(**without_cores(chosen)))


@st.composite
def chances(draw: st.DrawFn) -> tuple[str, ...]:
    """Spreads and noise of a machine from none to absurd."""

    def one(key: str, values: list[float]) -> str:
        return f"machine.variation.{key}={draw(st.sampled_from(values))}"

    return (
        one("device_speed_spread", [0.0, 0.15, 0.6]),
        one("network_noise", [0.0, 0.1, 0.5]),
        one("compute_jitter.value", [0.0, 0.03, 0.4]),
        f"seed={draw(st.integers(0, 5))}",
    )


def same_with_chance(job: Job) -> None:
    """With the same draws it gives every event of the SimPy engine, if links have room for all."""
    none = np.zeros(0, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "_only", lambda _edges, _binding: pricing.Edges(none, none, none))
        cube = cube_of_job(job)
        every = simulate_ranks(job, record=range(job.ranks))
        expected = simulate(job, engine="des", differences=differences(every.nominal, cube, drawn(job, cube, job.seed)))
    for what in ("arrival", "start", "end"):
        np.testing.assert_allclose(
            getattr(every.outcome.recorded, what),
            getattr(expected.timeline, what),
            rtol=RELATIVE,
            atol=1e-15,
            err_msg=what,
        )
    assert every.step_seconds == pytest.approx(expected.step_seconds, rel=RELATIVE)


@given(chosen=jobs(), chance=chances())
@examples(0.4, derandomize=True)
def test_with_chance_it_is_the_simpy_engine(make_job, chosen, chance) -> None:
    chosen = without_cores(chosen)
    same_with_chance(make_job(**{**chosen, "overrides": (*chosen["overrides"], *chance)}))


@pytest.mark.slow
@given(chosen=jobs(), chance=chances())
@examples(4, derandomize=True)
def test_with_chance_it_is_the_simpy_engine_in_many_jobs(make_job, chosen, chance) -> None:
    chosen = without_cores(chosen)
    same_with_chance(make_job(**{**chosen, "overrides": (*chosen["overrides"], *chance)}))
