"""A step of which rounds were passed over is the step that is walked to its end, and so is all that is drawn of it."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.pipelined import described
from twin.description.job import Job
from twin.diagnose.pipeline import pipeline_of
from twin.engine import classes, periods
from twin.engine.energy import step_energy
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.strategies.megatron.orders import problems

RELATIVE = 1e-9
MODEL = {"hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 32000}


@contextmanager
def passed_over() -> Iterator[list[int]]:
    """Note how many rounds are passed over."""
    found: list[int] = []
    done = periods.Observer._pass_over

    def noting(self: Any, state: Any, before: Any, cycles: Any, times: int) -> bool:
        if not done(self, state, before, cycles, times):
            return False
        found.append(times * cycles[0].ops // self.cycles[0].ops)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(periods.Observer, "_pass_over", noting)
        yield found


def walked(job: Job) -> Simulation:
    """Walk to the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classes.Observer, "of", lambda *_: None)
        return simulate(job)


def same(job: Job) -> int:
    """Compare every op of every class of ranks; return how many rounds were passed over."""
    with passed_over() as rounds:
        short = simulate(job)
    long = walked(job)
    assert short.step_seconds == pytest.approx(long.step_seconds, rel=RELATIVE)
    for one, other in zip(short.parts, long.parts, strict=True):
        for name in ("start", "end", "arrival", "share"):
            mine, theirs = getattr(one.timeline, name), getattr(other.timeline, name)
            np.testing.assert_allclose(mine, theirs, rtol=RELATIVE, atol=RELATIVE * long.step_seconds, err_msg=name)
    drawn_alike(short, long)
    return sum(rounds)


def drawn_alike(short: Simulation, long: Simulation) -> None:
    """Compare which passes are at once, and the highest power: both depend on whether times are equal or nearly so."""
    one, other = pipeline_of(short), pipeline_of(long)
    assert one is not None
    assert other is not None
    for mine, theirs in zip(one.stages, other.stages, strict=True):
        order, expected = (np.lexsort((p.chunk, p.micro, np.array(p.kind))) for p in (mine.passes, theirs.passes))
        np.testing.assert_array_equal(mine.passes.side[order], theirs.passes.side[expected])
    energy, expected_energy = step_energy(short), step_energy(long)
    assert (energy is None) == (expected_energy is None)
    if energy is not None and expected_energy is not None:
        assert energy.peak_watts == pytest.approx(expected_energy.peak_watts, rel=RELATIVE)


@st.composite
def long_jobs(draw: st.DrawFn) -> Job:
    """Pipelines with many micro-batches: all schedules, odd stages, stragglers, narrow and shared NICs."""
    schedule = draw(
        st.sampled_from(["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v"])
    )
    pipeline = draw(st.sampled_from([2, 3, 4]))
    pipeline += pipeline % 2 if schedule == "dualpipe" else 0
    chunks = {"interleaved": draw(st.integers(2, 3)), "zb_v": 2, "dualpipe_v": 2}.get(schedule, 1)
    micro_steps = draw(st.integers(10, 20)) * pipeline
    assert not problems(schedule, pipeline, micro_steps, chunks, None)
    stages = pipeline if schedule == "dualpipe" else pipeline * chunks
    layers = draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages).filter(sum))
    tensor, data = draw(st.sampled_from([(8, 1), (8, 2), (4, 2)]))
    ranks = pipeline * tensor * data
    slow = draw(st.lists(st.integers(0, ranks - 1), max_size=2, unique=True) | st.just(range(tensor, 2 * tensor)))
    overlaps = schedule in ("1f1b", "gpipe") or (schedule == "interleaved" and pipeline > 2)
    machine: dict[str, Any] = {
        "extends": "dgx-h100",
        "nic": {"bandwidth": draw(st.sampled_from(["700 MB/s", "6 GB/s", "50 GB/s"]))},
        "variation": {"compute_slowdown": draw(st.sampled_from([0.0, 0.19]))},
    }
    if draw(st.booleans()):
        machine["nic"]["devices"] = [list(range(8))]
    return described(
        {"pipeline": pipeline, "data": data, "tensor": tensor},
        machine=machine,
        micro_steps=micro_steps,
        sequences=1,
        model={**MODEL, "layers": sum(layers), "tied_embeddings": draw(st.booleans())},
        schedule=schedule,
        chunks=chunks,
        stage_layers=layers,
        overlap_messages=draw(st.sampled_from([None, True, False] if overlaps else [None])),
        overlap_gradients=draw(st.booleans()),
        split_messages=draw(st.booleans()),
        recompute=draw(st.booleans()),
        stragglers=[{"rank": rank, "slowdown": 1.0 + 0.1 * (rank // 8 + 1)} for rank in slow],
        rank_order=draw(st.sampled_from(["pipeline_outermost", "data_outermost"])),
    )


@given(long_jobs())
@examples(0.3)
def test_what_is_passed_over_is_what_would_have_been_walked(job: Job) -> None:
    same(job)


CASES = [*itertools.product(["1f1b", "interleaved"], [None, False]), *itertools.product(["zb_v", "dualpipe_v"], [None])]


@pytest.mark.parametrize(("schedule", "overlap"), CASES)
def test_most_of_a_long_step_is_passed_over(schedule: str, overlap: bool | None) -> None:
    """Of hundreds of rounds; one stage is slow."""
    chunks = 1 if schedule in ("1f1b", "zb_h1") else 2
    job = described(
        {"pipeline": 4, "tensor": 8},
        micro_steps=160,
        sequences=1,
        model={**MODEL, "layers": 8},
        schedule=schedule,
        chunks=chunks,
        overlap_messages=overlap,
        stragglers=[{"rank": 8 + rank, "slowdown": 1.2} for rank in range(8)],
    )
    of_round = 4 if schedule == "interleaved" else 1
    assert same(job) * of_round > 80


SMALL = {"hidden": 256, "heads": 8, "sequence": 256, "vocabulary": 1024, "layers": 2}
LARGE = {"hidden": 8192, "heads": 64, "sequence": 2048, "vocabulary": 51200}


def test_what_begins_as_something_ends_draws_no_power_with_it() -> None:
    """Of two stages with a power cap, one slow: once 2 % too much, for 10^-15 of the step at the end of a round."""
    job = described(
        {"pipeline": 2},
        micro_steps=286,
        sequences=1,
        model=SMALL,
        schedule="1f1b",
        cuda_graphs=True,
        power_cap_watts=350,
        stragglers=[{"rank": 0, "slowdown": 1.5}],
    )
    assert same(job) > 100


def test_passes_that_follow_each_other_are_not_at_once() -> None:
    """Uneven stages in a V, the first slow: once two passes drawn as at once, for 10^-15 of the step."""
    job = described(
        {"pipeline": 4, "data": 2, "context": 2},
        machine={"extends": "perlmutter", "nic": {"bandwidth": "700 MB/s"}},
        micro_steps=53,
        sequences=1,
        model={**LARGE, "layers": 9},
        schedule="zb_v",
        chunks=2,
        stage_layers=[2, *[1] * 7],
        context_exchange="hierarchical",
        recompute=True,
        stragglers=[{"rank": rank, "slowdown": 1.2} for rank in range(4)],
    )
    assert same(job) > 10
    short = pipeline_of(simulate(job))
    assert short is not None
    assert not any(stage.passes.side.any() for stage in short.stages)


def test_a_long_step_is_what_every_rank_does_by_itself() -> None:
    """The SimPy engine, which knows neither classes nor segments nor rounds, on all 16 ranks."""
    job = described(
        {"pipeline": 2, "tensor": 8},
        micro_steps=24,
        sequences=1,
        model={**MODEL, "layers": 2},
        schedule="1f1b",
        split_messages=True,
    )
    with passed_over() as rounds:
        short = simulate(job)
    assert sum(rounds) > 10
    every = simulate(job, engine="des")
    assert every.partition.rank_classes == job.ranks
    for one, other in zip(short.parts, every.parts, strict=True):
        for row in other.timeline.end:
            np.testing.assert_allclose(one.timeline.end[0], row, rtol=RELATIVE)
