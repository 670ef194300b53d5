"""The rank map says who is slow: of a trace, of a watched run; and reads strangers' alerts strictly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dashboards.app import content
from dashboards.catalog import Catalog
from dashboards.diagnosis import diagnosis_of, read_watch
from dashboards.page import PageContext
from dashboards.pages import rank_map
from dashboards.rank_table import rank_table_of
from dashboards.settings import Settings
from tests.dashboards.test_pages import inside, shows_a_problem, text_of
from twin.description.problems import DescriptionError

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "examples" / "runs" / "testbed" / "2x2x2x1-measured"
ALERT = {"kind": "device", "text": "compute of rank 2 is slow", "confidence": 0.995, "ranks": [2], "evidence": "it is"}
WATCH = {
    "after_steps": 23,
    "findings": [ALERT],
    "notes": [],
    "job": {"grid": {"data": 1, "z": 2, "y": 2, "x": 1}},
    "figures": {"compute_seconds": [0.1, 0.1, 0.3, 0.1]},
}


@pytest.fixture
def watched(tmp_path) -> PageContext:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "watch.json").write_text(json.dumps(WATCH))
    shutil.copytree(MEASURED, tmp_path / "measured")
    return PageContext(Settings(tmp_path), Catalog(tmp_path))


def page(context: PageContext, label: str) -> Any:
    name = next(entry.name for entry in context.catalog.entries() if entry.label == label)
    return content(rank_map.PAGE, context, {"run": name})


def test_an_alert_of_a_running_job_is_shown_and_its_rank_marked(watched):
    shown = page(watched, "live")
    assert not shows_a_problem(shown)
    assert "compute of rank 2 is slow (99.5 % sure)" in text_of(shown)
    (figure,) = [node.figure for node in inside(shown) if getattr(node, "id", "") == rank_map.MAP]
    (marks,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert list(marks.customdata) == [2]
    assert (marks.x[0], marks.y[0]) == (0, 1), "rank 2 is z 1, y 0"


def test_a_healthy_trace_says_nothing_found(watched):
    text = text_of(page(watched, "measured"))
    assert "Nothing found" in text
    assert "But a step takes 6.65 times as long as the twin says" in text, "which is a guess for that machine"


@pytest.mark.parametrize(("assumed", "says"), [(False, "Not located: no rank"), (True, "Nothing found: no rank")])
def test_steps_that_are_far_too_long_are_said_to_be(assumed: bool, says: str) -> None:
    longer = {"text": "a step takes 3 times as long", "assumed": assumed}
    found = read_watch({**WATCH, "findings": [], "not_located": longer}, 4, "live")
    text = text_of(rank_map.diagnosis_card(found))
    assert says in text
    assert "a step takes 3 times as long" in text


def test_figures_of_a_watched_run_are_those_written(watched):
    (entry,) = [e for e in watched.catalog.entries() if e.kind == "watch"]
    assert rank_table_of(watched.catalog, entry).figures["compute_seconds"].tolist() == [0.1, 0.1, 0.3, 0.1]


def test_a_new_look_is_noticed(watched):
    (entry,) = [e for e in watched.catalog.entries() if e.kind == "watch"]
    (entry.path / "watch.json").write_text(json.dumps({**WATCH, "findings": [], "after_steps": 33}))
    (again,) = [e for e in watched.catalog.entries() if e.kind == "watch"]
    assert again.changed != entry.changed
    assert diagnosis_of(watched.catalog, again).findings == ()


def test_predictions_have_no_faults_to_find(context, names):
    entry = context.catalog.entry(names["testbed/2x2x2x1-predicted"])
    assert diagnosis_of(context.catalog, entry).why_not


@pytest.mark.parametrize(
    "change",
    [
        {"findings": "x"},
        {"findings": [5]},
        {"findings": [{**ALERT, "ranks": [4]}]},
        {"findings": [{**ALERT, "ranks": "2"}]},
        {"findings": [{**ALERT, "ranks": [True]}]},
        {"findings": [{**ALERT, "confidence": float("nan")}]},
        {"findings": [{**ALERT, "confidence": "high"}]},
        {"findings": [ALERT] * 1000},
        {"notes": 5},
        {"not_located": "far too long"},
    ],
    ids=str,
)
def test_alerts_that_make_no_sense_are_refused(change):
    with pytest.raises(DescriptionError, match="findings"):
        read_watch({**WATCH, **change}, 4, "live")


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {}},
        {"figures": {"compute_seconds": [1, 2]}},
        {"figures": 3},
        {"job": 3},
        {"job": {"grid": {"z": 10**9}}},
    ],
)
def test_a_damaged_watch_file_is_a_message(watched, change):
    (entry,) = [e for e in watched.catalog.entries() if e.kind == "watch"]
    (entry.path / "watch.json").write_text(json.dumps({**WATCH, **change}))
    assert shows_a_problem(page(watched, "live"))


def test_markup_in_an_alert_stays_text():
    evil = "<img src=x onerror=alert(1)>"
    found = read_watch({**WATCH, "findings": [{**ALERT, "text": evil + "x" * 10_000}]}, 4, "live")
    card = rank_map.diagnosis_card(found)
    assert evil in text_of(card)
    assert len(found.findings[0].text) <= 500
    assert not any(type(node).__name__ in {"Markdown", "DangerouslySetInnerHTML"} for node in inside(card))
