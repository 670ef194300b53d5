"""What is written once for many micro-batches is what is written one by one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_compiler import written_out
from tests.profiles import examples
from tests.strategies.pipelined import described
from twin.engine.compiler import compile_program
from twin.schedule.ops import Rounds, Schedule
from twin.strategies import strategy_of
from twin.strategies.megatron import step
from twin.strategies.megatron.orders import problems


@st.composite
def long_jobs(draw: st.DrawFn) -> Any:
    """Pipelines with many micro-batches: all of Megatron's schedules, messages that overlap or not, odd stages."""
    schedule = draw(
        st.sampled_from(["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v"])
    )
    pipeline = draw(st.sampled_from([2, 3, 4]))
    pipeline += pipeline % 2 if schedule == "dualpipe" else 0
    chunks = {"interleaved": draw(st.integers(2, 3)), "zb_v": 2, "dualpipe_v": 2}.get(schedule, 1)
    micro_steps = draw(st.integers(2 * pipeline, 40))
    group = draw(st.sampled_from([None, pipeline, pipeline + 1])) if schedule == "interleaved" else None
    micro_steps += micro_steps % 2 if schedule == "dualpipe" else 0
    if problems(schedule, pipeline, micro_steps, chunks, group):
        micro_steps, group = 6 * pipeline, None
    stages = pipeline if schedule == "dualpipe" else pipeline * chunks
    layers = draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages).filter(sum))
    overlaps = schedule in ("1f1b", "gpipe") or (schedule == "interleaved" and pipeline > 2)
    return described(
        {"pipeline": pipeline, "data": draw(st.sampled_from([1, 2]))},
        micro_steps=micro_steps,
        sequences=1,
        model={"layers": sum(layers), "tied_embeddings": draw(st.booleans())},
        schedule=schedule,
        chunks=chunks,
        micro_group=group,
        stage_layers=layers,
        overlap_messages=draw(st.sampled_from([None, True, False] if overlaps else [None])),
        overlap_gradients=draw(st.booleans()),
    )


def written(job: Any, stage: int) -> Schedule:
    strategy = strategy_of(job)
    return strategy.schedule(job, strategy.roles(job)[stage])


@given(long_jobs())
@examples(0.5)
def test_rounds_are_what_is_written_one_by_one(job: Any) -> None:
    for stage in range(job.concrete_grid.pipeline):
        schedule = written(job, stage)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step, "MIN_UNITS", 10**9)
            plain = written(job, stage)
        assert not any(isinstance(op, Rounds) for op in plain.ops)
        assert written_out(schedule) == written_out(plain)
        program, expected = compile_program(schedule, job), compile_program(plain, job)
        assert program.code == expected.code
        assert program.target == expected.target
        assert program.amount == expected.amount
        assert program.host_seconds == expected.host_seconds
        assert [program.name(i) for i in range(len(program))] == [expected.name(i) for i in range(len(expected))]


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "interleaved"])
def test_long_steps_are_written_as_few_ops(schedule: str) -> None:
    """Ten times the micro-batches are not more ops of the schedule, but for a few."""
    chunks = 2 if schedule == "interleaved" else 1
    counts = []
    for micro_steps in (32, 320):
        job = described({"pipeline": 4}, micro_steps=micro_steps, schedule=schedule, chunks=chunks, model={"layers": 8})
        counts.append(len(written(job, 1).ops))
    assert counts[1] <= counts[0] + 8
