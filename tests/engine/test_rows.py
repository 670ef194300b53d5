"""Figures from whole segments are those from every op written out."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.profiles import examples
from tests.strategies.pipelined import described
from tests.strategies.test_megatron_step import any_jobs
from twin.diagnose.pipeline import pipeline_of
from twin.engine.energy import step_energy
from twin.engine.report import report
from twin.engine.rows import Row
from twin.engine.setting import Timeline
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.strategies import load_job

RELATIVE = 1e-9


def written_out(simulation: Simulation) -> Simulation:
    """The same step with every op known one by one."""
    lines = [part.timeline for part in simulation.parts]
    dense = [Timeline.of(line.start, line.end, line.arrival, line.share) for line in lines]
    assert not any(row.segments for line in dense for row in line.rows)
    parts = [replace(part, timeline=line) for part, line in zip(simulation.parts, dense, strict=True)]
    return replace(simulation, parts=tuple(parts))


def near(expected: Any, step: float) -> Any:
    return pytest.approx(expected, rel=RELATIVE, abs=RELATIVE * step)


def alike(one: Any, other: Any, step: float, where: str) -> None:
    """Compare numbers at any depth."""
    if isinstance(other, dict):
        assert list(one) == list(other), where
        for key, value in other.items():
            alike(one[key], value, step, f"{where}, {key}")
    else:
        assert one == (near(other, step) if isinstance(other, float) else other), where


def same(simulation: Simulation) -> None:
    """Compare all that is summed up over a step, and the power at all times."""
    dense = written_out(simulation)
    step = dense.step_seconds
    assert simulation.step_seconds == step
    alike(asdict(report(simulation)), asdict(report(dense)), step, "report")
    first, second = pipeline_of(simulation), pipeline_of(dense)
    assert (first is None) == (second is None)
    if first is None or second is None:
        return
    for stage, expected_stage in zip(first.stages, second.stages, strict=True):
        for name, value in expected_stage.bubbles.by_name().items():
            assert getattr(stage.bubbles, name) == near(value, step), name
        passes, expected_passes = stage.passes, expected_stage.passes
        assert passes.kind == expected_passes.kind
        for name in ("chunk", "micro"):
            np.testing.assert_array_equal(getattr(passes, name), getattr(expected_passes, name), err_msg=name)
        for name in ("start", "end", "computing"):
            mine, theirs = getattr(passes, name), getattr(expected_passes, name)
            np.testing.assert_allclose(mine, theirs, rtol=RELATIVE, atol=RELATIVE * step, err_msg=name)
    drawn, expected_drawn = step_energy(simulation), step_energy(dense)
    if drawn is not None and expected_drawn is not None:
        at = np.linspace(0.0, step, 1001)[:-1] + step / 2003  # hardly where it changes
        watts = [
            held[np.searchsorted(when, at, side="right") - 1]
            for when, held in (drawn.over_time, expected_drawn.over_time)
        ]
        assert np.mean(np.abs(watts[0] - watts[1]) > RELATIVE * watts[1]) < 0.01


@given(any_jobs())
@examples(0.3)
def test_figures_from_segments_are_those_from_every_op(job: Any) -> None:
    same(simulate(job))


LARGE = {"hidden": 4096, "heads": 32, "sequence": 2048, "layers": 8}


def rows_of(simulation: Simulation) -> list[Row]:
    return [row for part in simulation.parts for row in part.timeline.rows]


@pytest.mark.parametrize("slowdown", [0.0, 0.19])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_segment_with_something_beside_it_is_written_out(slowdown: float, overlap: bool) -> None:
    """Also where what is beside it does not slow it: a message then hides its waits for tensor ranks all the same."""
    job = described(
        {"pipeline": 4, "tensor": 8},
        model=LARGE,
        schedule="interleaved",
        chunks=2,
        batch={"sequences": 16, "micro_sequences": 1},
        overlap_messages=overlap,
    )
    job = load_job(
        {**job.model_dump(mode="json", by_alias=True)}, [f"machine.variation.compute_slowdown.value={slowdown}"]
    )
    simulation = simulate(job)
    same(simulation)
    rows = rows_of(simulation)
    assert sum(len(each.begins) for row in rows for each in row.segments) > 20
    for part, row in zip(simulation.parts, rows, strict=True):
        numbers = np.concatenate([row.ops, *(each.ops.ravel() for each in row.segments)])
        np.testing.assert_array_equal(np.sort(numbers), np.arange(len(part.program)))
        assert row.end == row.dense(len(part.program)).end.max()
