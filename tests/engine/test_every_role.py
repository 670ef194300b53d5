"""Every rank of a pipeline on its own, against the folded engine; and what a search counts for pipelines."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.profiles import examples
from tests.strategies.pipelined import described
from tests.strategies.test_megatron_step import any_jobs
from twin.cost.memory import memory_use
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.engine import all_ranks, every_role, pricing
from twin.engine.all_ranks import AllRanks, cube_of_simulation, drawn, simulate_ranks
from twin.engine.differences import differences
from twin.engine.report import report, report_all_ranks
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.strategies.megatron.memory import memory_by_category


def furthest(folded: Simulation, every: AllRanks) -> float:
    """The largest difference between any two times of one event, relative to the step."""
    found = 0.0
    for part, kept in zip(folded.parts, every.of_roles, strict=True):
        row = {int(c): number for number, c in enumerate(part.classes)}
        rows = [row[int(folded.partition.rank_class[rank])] for rank in np.sort(part.role.ranks)]
        for what in ("start", "end", "arrival"):
            found = max(found, float(abs(getattr(part.timeline, what)[rows] - getattr(kept, what)).max()))
    return found / folded.step_seconds


def both(job: Job) -> tuple[Simulation, AllRanks]:
    """Both engines' steps, with nothing drawn."""
    folded = simulate(job)
    return folded, simulate_ranks(job, nominal=folded, record=range(job.ranks), random=False)


@given(any_jobs())
@examples(0.3)
def test_without_differences_it_is_the_folded_engine(job: Any) -> None:
    job = job.model_copy(update={"stragglers": ()})
    folded, every = both(job)
    assert furthest(folded, every) < 1e-9
    figures, own = report(folded), report_all_ranks(every)
    computing = figures.compute_seconds + figures.slowest_device_wait_seconds
    assert own.compute_seconds == pytest.approx(computing, rel=1e-9)
    for phase, seconds in figures.compute_by_phase.items():
        assert own.compute_by_phase[phase] == pytest.approx(seconds * folded.typical_slowness, rel=1e-9)


@given(any_jobs())
@examples(0.3)
def test_with_stragglers_it_is_the_folded_engine(job: Any) -> None:
    """Also where messages begin beside compute, on some ranks sooner than on others."""
    folded, every = both(job)
    assert furthest(folded, every) < 1e-9
    assert every.step_seconds == pytest.approx(folded.step_seconds, rel=1e-9)


CHANCE = {"device_speed_spread": 0.4, "compute_jitter": 0.2, "network_noise": 0.3}


@given(any_jobs())
@examples(0.3)
def test_with_chance_it_is_the_simpy_engine(job: Any) -> None:
    """With the same draws, settled to the end, if links have room for all."""
    variation = job.machine.variation.model_copy(update=CHANCE)
    job = job.model_copy(update={"machine": job.machine.model_copy(update={"variation": variation})})
    none = np.zeros(0, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "_only", lambda _edges, _binding: pricing.Edges(none, none, none))
        patch.setattr(all_ranks, "varies", lambda _job: False)  # then all is settled to the end
        every = simulate_ranks(job, record=range(job.ranks))
        cube = cube_of_simulation(every.nominal)
        same = differences(every.nominal, cube, drawn(job, cube, job.seed))
        expected = simulate(job, engine="des", differences=same)
    assert furthest(expected, every) < 1e-9


def test_stragglers_are_exact_where_messages_are_waited_for() -> None:
    slow = [{"rank": 5, "slowdown": 1.4}, {"rank": 2, "slowdown": 1.1}]
    folded, every = both(described({"pipeline": 4, "data": 2, "tensor": 2}, stragglers=slow))
    assert folded.partition.rank_classes > 4
    assert furthest(folded, every) < 1e-9


def test_a_step_that_does_not_settle_is_refused_and_not_half_right(monkeypatch: pytest.MonkeyPatch) -> None:
    job = described({"pipeline": 2, "data": 4}, schedule="zb_h1", stragglers=[{"rank": 3, "slowdown": 1.7}])
    folded, every = both(job)
    assert furthest(folded, every) < 1e-9
    monkeypatch.setattr(every_role, "MAX_AGAIN", 1)
    with pytest.raises(DescriptionError, match="does not settle in 1 times"):
        both(job)


def test_devices_are_drawn_by_a_seed_and_the_step_waits_for_them() -> None:
    job = described({"pipeline": 4, "data": 4, "tensor": 2}, slowest_device=True)
    one, again, other = (simulate_ranks(job, seed=seed, record=[3]) for seed in (1, 1, 2))
    assert one.step_seconds == again.step_seconds != other.step_seconds
    assert one.outcome.end.shape == job.mesh.sizes
    assert one.step_seconds == pytest.approx(simulate(job).step_seconds, rel=0.2)
    written = one.of_recorded()
    assert [len(part.classes) for part in written.parts] == [1, 0, 0, 0]


@given(any_jobs())
@examples(0.5)
def test_memory_is_that_of_the_rank_that_needs_most(job: Any) -> None:
    """Stages that hold no more than others are not counted; the largest is the largest of all."""
    every = [sum(memory_by_category(job, rank).values()) for rank in range(job.concrete_grid.pipeline)]
    assert memory_use(job).per_rank_bytes == max(every)
