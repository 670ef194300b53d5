"""The dashboard's picture of a pipeline: from the table of events what the simulation itself says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboards.catalog import Catalog
from dashboards.events import columns, events_of
from dashboards.figures.pipeline import MAX_BOXES, MAX_LANES, bubble_table, lanes_of, pipeline
from dashboards.page import PageContext
from dashboards.pages import timeline, timeline_pipeline
from dashboards.settings import Settings
from dashboards.timeline.pipeline import pipeline_of
from dashboards.timeline.step import step_of
from tests.compare.compare_traces import by_hand_predicted, table
from twin.api import Prediction, simulate

JOB: dict[str, Any] = {
    "strategy": "megatron",
    "model": {"layers": 8, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024},
    "machine": "dgx-h100",
    "ranks": 16,
    "grid": {"pipeline": 4, "data": 2, "tensor": 2},
    "schedule": "interleaved",
    "chunks": 2,
    "batch": {"sequences": 16, "micro_sequences": 1},
    "overlap_gradients": True,
}


def run_of(found: Prediction, ranks: list[int]) -> Any:
    events = columns(found.events(ranks))
    run = pipeline_of(events, step_of(events, None))
    assert run is not None
    return run


@pytest.mark.parametrize(
    "more", [{}, {"schedule": "zb_v", "overlap_gradients": False}, {"rank_order": "data_outermost"}]
)
def test_events_say_what_the_simulation_says(more: dict[str, Any]) -> None:
    """Times of events are whole nanoseconds, and begin with the first op, which the host has prepared by then."""
    found = simulate({**JOB, **more})
    assert found.pipeline is not None
    run = run_of(found, [stage.rank for stage in found.pipeline.stages])
    assert (run.micro_batches, run.chunks) == (found.pipeline.micro_batches, found.pipeline.chunks)
    host = found.step_seconds - run.step_seconds
    assert 0 < host < 1e-4
    for ours, theirs in zip(run.stages, found.pipeline.stages, strict=True):
        assert (ours.stage, ours.rank, ours.passes.kind) == (theirs.stage, theirs.rank, theirs.passes.kind)
        for name in ("chunk", "micro"):
            np.testing.assert_array_equal(getattr(ours.passes, name), getattr(theirs.passes, name))
        for name in ("start", "end"):
            np.testing.assert_allclose(getattr(ours.passes, name) + host, getattr(theirs.passes, name), atol=2e-9)
        for name, seconds in theirs.bubbles.by_name().items():
            expected = seconds - host if name == "warm_up" else seconds
            assert ours.bubbles.by_name()[name] == pytest.approx(expected, abs=1e-6)
        assert ours.bubbles.step == pytest.approx(run.step_seconds, rel=1e-12)


def test_replicas_of_a_stage_are_beside_each_other() -> None:
    run = run_of(simulate(JOB), list(range(16)))
    assert [(stage.stage, stage.rank) for stage in run.stages] == [(rank // 4, rank) for rank in range(16)]


def test_every_pass_is_a_box() -> None:
    run = run_of(simulate(JOB), [0, 4, 8, 12])
    figure, words = pipeline(run)
    assert words.startswith("128 passes of 8 micro-batches, one box each")
    assert [trace.name for trace in figure.data] == [
        f"{kind}, chunk {chunk}" for kind in ("forward", "backward") for chunk in (0, 1)
    ]
    drawn = {
        (int(lane), trace.name, text, round(base, 9), round(base + length, 9))
        for trace in figure.data
        for lane, text, base, length in zip(trace.y, trace.text, trace.base, trace.x, strict=True)
    }
    expected = {
        (
            lane,
            f"{'forward' if kind == 'F' else 'backward'}, chunk {chunk}",
            str(micro),
            round(float(start), 9),
            round(float(end), 9),
        )
        for lane, stage in enumerate(run.stages)
        for kind, chunk, micro, start, end in zip(
            stage.passes.kind, stage.passes.chunk, stage.passes.micro, stage.passes.start, stage.passes.end, strict=True
        )
    }
    assert drawn == expected
    rows = bubble_table(run)
    assert rows[0]["stage"] == "mean"
    for row in rows:
        assert sum(value for value in row.values() if isinstance(value, float)) == pytest.approx(100, abs=0.05)


@pytest.mark.full
def test_too_many_passes_are_a_picture_that_says_so() -> None:
    found = simulate({**JOB, "batch": {"sequences": 600, "micro_sequences": 1}, "schedule": "1f1b", "chunks": 1})
    run = run_of(found, list(range(16)))
    assert sum(len(stage.passes) for stage in run.stages) > MAX_BOXES
    figure, words = pipeline(run)
    assert "9,600 passes of 300 micro-batches, too many for boxes" in words
    assert len(figure.layout.images) == 1
    assert [trace.x for trace in figure.data] == [(None,), (None,)]  # the legend alone: forward and backward
    many = type(run)(run.stages * 5, run.step_seconds)
    assert len(lanes_of(many)) == MAX_LANES
    assert "16 ranks are left out" in pipeline(many)[1]


def test_runs_without_stages_have_no_pipeline() -> None:
    events = columns(table(by_hand_predicted()))
    assert pipeline_of(events, step_of(events, None)) is None
    alone = simulate({**JOB, "ranks": 2, "grid": {"data": 2}, "schedule": "1f1b", "chunks": 1}).events([0, 1])
    events = columns(alone)
    assert pipeline_of(events, step_of(events, None)) is None


@pytest.fixture
def runs(tmp_path: Path) -> PageContext:
    simulate(JOB).write(tmp_path / "interleaved")
    simulate({**JOB, "schedule": "1f1b", "chunks": 1}).write(tmp_path / "plain")
    return PageContext(Settings(tmp_path), Catalog(tmp_path))


def test_the_page_shows_the_pipeline_of_each_run(runs: PageContext) -> None:
    names = {entry.label: entry.name for entry in runs.catalog.entries()}
    query = {"run": names["plain"], "other": names["interleaved"]}
    text = str(timeline.shown(runs, query))
    assert text.count("Pipeline, ") == 2
    assert "pipeline-1" in text
    one = timeline_pipeline.repipe(runs, "0,4", f"?run={names['plain']}")
    assert len(one) == 1
    assert "stage 1 · rank 4" in str(one)
    assert "rank 8" not in str(one)
    assert events_of(runs.catalog, runs.catalog.entry(names["plain"])).steps == [0]
