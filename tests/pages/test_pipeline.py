"""Pictures of a pipeline: every pass is drawn as it was, or the picture says that it is not."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from twin.api import simulate
from twin.cli import main
from twin.engine.runs import timeline_page
from twin.pages.pipeline import bubble_rows
from twin.show.pipeline import lane
from twin.trace.bubbles import Bubbles, StageRun
from twin.trace.palette import PASSES, pass_colour
from twin.trace.passes import Passes

JOB: dict[str, Any] = {
    "strategy": "megatron",
    "model": {"layers": 8, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024},
    "machine": "dgx-h100",
    "ranks": 8,
    "grid": {"pipeline": 4, "data": 2},
    "batch": {"sequences": 8, "micro_sequences": 1},
}


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb_h1", 1)])
def test_the_page_has_every_pass(schedule: str, chunks: int) -> None:
    found = simulate({**JOB, "schedule": schedule, "chunks": chunks})
    run = found.pipeline
    assert run is not None
    page = timeline_page(found.simulation, found.as_json, [0, 2], 4, run)
    (data,) = re.findall(r'id="data" type="application/json">(.*?)</script>', page)
    picture = json.loads(data)["pipeline"]
    assert [one["name"] for one in picture["lanes"]] == [f"stage {n} · rank {2 * n}" for n in range(4)]
    assert picture["micro_batches"] == 4
    letters = {"F", "I", "W"} if schedule == "zb_h1" else {"F", "B"}
    for one, stage in zip(picture["lanes"], run.stages, strict=True):
        assert len(one["start"]) == len(stage.passes) == len(letters) * chunks * 4
        np.testing.assert_allclose(one["start"], 1e3 * stage.passes.start, atol=1e-6)
        boxes = [one["kinds"][kind] for kind in one["kind"]]
        assert [box[0] for box in boxes] == list(stage.passes.kind)
        assert all(box in picture["colours"] for box in boxes)
    assert len(picture["colours"]) == len(letters) * chunks
    assert "<h2>Bubbles</h2>" in page
    rows = bubble_rows(run)
    assert [row[0] for row in rows] == ["mean", "stage 0", "stage 1", "stage 2", "stage 3"]
    for row in rows:
        assert sum(map(float, row[1:])) == pytest.approx(100, abs=0.4)


def test_a_page_without_a_pipeline_has_no_picture_of_one() -> None:
    found = simulate("examples/tiny-gpt.yaml")
    page = timeline_page(found.simulation, found.as_json, [0], 1, found.pipeline)
    assert found.pipeline is None
    assert (
        "pipeline" not in page.rpartition("</style>")[2].replace("Pipeline", "pipeline").split('"use strict"')[1][:200]
    )
    assert "<h2>Bubbles</h2>" not in page
    assert "pipeline" not in found.as_json


def test_chunks_have_shades_of_one_colour() -> None:
    for kind, plain in PASSES.items():
        assert pass_colour(kind, 0, 4) == plain
        shades = [pass_colour(kind, chunk, 4) for chunk in range(4)]
        assert len(set(shades)) == 4
        assert shades == sorted(shades, key=lambda c: int(c[1:3], 16) + int(c[3:5], 16) + int(c[5:], 16))


def stage_of(*passes: tuple[str, int, float, float]) -> StageRun:
    kind, micro, start, end = zip(*passes, strict=True)
    times = np.array(start), np.array(end)
    zeros = np.zeros(len(kind), dtype=np.int64)
    columns = Passes(kind, zeros, np.array(micro), *times, times[1] - times[0])
    return StageRun(0, 0, columns, Bubbles(*[0.0] * 7))


def test_a_terminal_shows_each_pass_or_none() -> None:
    small = stage_of(("F", 0, 0.0, 3.0), ("F", 11, 3.0, 5.0), ("B", 0, 6.0, 10.0))
    line = lane(small, 12.0, 12)
    assert line is not None
    assert line.plain == "0FFFF·0BBB··"  # eleven has no room for its number beside its letter
    wide = lane(small, 12.0, 24)
    assert wide is not None
    assert wide.plain == "0FFFFF11FF··0BBBBBBB····"
    assert lane(small, 12.0, 3) is None
    assert lane(stage_of(("F", 0, 0.0, 0.1), ("B", 0, 1.0, 10.0)), 12.0, 12) is None


def test_simulate_prints_a_pipeline(capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(JOB))

    def said(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["simulate", str(path), *more])
        assert not ended.value.code
        return capsys.readouterr().out

    text = said()
    assert "Pipeline of 4 stages, 4 micro-batches" in text
    assert re.search(r"^  stage 3 ·+0F+0B+", text, re.MULTILINE)
    parts = text[text.index("  computing ") : text.index("  stage 0")]
    shares = re.findall(r"([\d.]+) %", re.sub(r"bubble [\d.]+ %", "", parts))
    assert len(shares) == 7
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.4)
    assert "too many passes for a picture" in said("--set", "batch.sequences=256")
    pipeline = json.loads(said("--json"))["pipeline"]
    assert (pipeline["stages"], pipeline["chunks"], pipeline["micro_batches"]) == (4, 1, 4)
    assert [row["rank"] for row in pipeline["by_stage"]] == [0, 2, 4, 6]
    assert said("--out", str(tmp_path / "run")).count("timeline.html")
    assert "<h2>Pipeline</h2>" in (tmp_path / "run" / "timeline.html").read_text(encoding="utf-8")
