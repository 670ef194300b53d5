"""Trainings: what is read while they write, strictly; what is drawn of a million steps; whether they are healthy."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dash import no_update
from hypothesis import given
from hypothesis import strategies as st

from dashboards.catalog import ANEW_SECONDS, Catalog
from dashboards.figures.training import MAX_POINTS, Curve, along, panel, thinned
from dashboards.page import PageContext
from dashboards.pages.training import curve_of, look, predicted_rate, shown
from dashboards.settings import Settings
from dashboards.training import record as module
from dashboards.training.health import health_of
from dashboards.training.record import Reader, Record, summary_of
from tests.dashboards.serving import EXAMPLES, step_line, write_training
from tests.profiles import examples
from twin.description.problems import DescriptionError


@pytest.fixture
def trained(tmp_path: Path):
    """A training, a catalog of its directory, and a way to add lines."""
    folder = write_training(tmp_path / "runs" / "t")
    catalog = Catalog(tmp_path / "runs")

    def add(*lines: Any) -> None:
        with (folder / "metrics.jsonl").open("a") as file:
            file.write("".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in lines))

    return folder, catalog, add


def only(catalog: Catalog):
    return catalog.entries()[0]


def test_a_training_is_found_and_read(trained):
    _, catalog, _ = trained
    entry = only(catalog)
    assert (entry.kind, entry.label) == ("training", "t")
    found = Reader().record(catalog, entry)
    assert found.step.tolist() == list(range(40))
    assert found.columns["loss"][3] == pytest.approx(2 + 4 * 0.9**3)
    assert found.validation == {"validation_loss": [(0, 6.0), (40, 2.2)], "validation_loss/code": [(0, 6.5), (40, 2.5)]}
    assert np.isnan(found.columns["model_flops_utilisation"]).all()
    assert summary_of(catalog, entry).tokens_per_second == 4096


def test_who_draws_a_training_keeps_it_as_it_was_while_others_read_on(trained):
    """Columns that are held do not grow, and do not stop the next line from being read."""
    _, catalog, add = trained
    reader = Reader()
    before = reader.record(catalog, only(catalog))
    held = np.frombuffer(before.step, dtype=np.int64)
    steps = len(before)
    add(step_line(steps, 2.0))
    assert len(reader.record(catalog, only(catalog))) == steps + 1
    assert len(before) == len(held) == steps
    assert {len(column) for column in before.columns.values()} == {steps}


def test_it_is_read_on_while_it_writes(trained):
    """Half a line counts when its other half is there; a file that was cut is read anew."""
    folder, catalog, add = trained
    reader = Reader()
    assert len(reader.record(catalog, only(catalog))) == 40
    text = json.dumps(step_line(40, 2.0)) + "\n"
    add(text[:20])
    assert len(reader.record(catalog, only(catalog))) == 40
    add(text[20:], step_line(41, 1.9))
    found = reader.record(catalog, only(catalog))
    assert (len(found), found.bad_lines) == (42, 0)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:11]) + '{"from_step": 41, "to_step": 10}\n')
    found = reader.record(catalog, only(catalog))
    assert (len(found), found.back) == (10, [(41, 10)])


BAD = [
    "{",
    "[1]",
    "null",
    '{"step": -1}',
    '{"step": 1.5}',
    '{"step": true}',
    '{"step": 3, "loss": "x"}',
    '{"step": 3, "loss": [1]}',
    '{"step": 99999999999999999999}',
    '{"after_steps": "x", "validation_loss": 1}',
    "[" * 5000,
    '{"to_step": null}',
    "\x00\xff",
]


@pytest.mark.parametrize("text", BAD)
def test_lines_of_strangers_are_left_out_and_counted(trained, text):
    _, catalog, add = trained
    add(text + "\n", step_line(40, 2.0))
    found = Reader().record(catalog, only(catalog))
    assert (len(found), found.bad_lines) == (41, 1)
    assert {len(column) for column in found.columns.values()} == {41}


@given(
    st.lists(
        st.one_of(st.integers(0, 9).map(lambda n: json.dumps(step_line(n, 1.5))), st.sampled_from(BAD)), max_size=30
    )
)
@examples(0.5, derandomize=True)
def test_many_lines_at_once_are_as_one_by_one(lines):
    """Arrow reads steps together; the same lines one by one give the same."""
    together, alone = Record(), Record()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "FEW", 1)
        together.take_all([line.encode(errors="replace") for line in lines])
    for line in lines:
        alone.take(line.encode(errors="replace"))
    assert together.step.tolist() == alone.step.tolist()
    assert together.columns == alone.columns or np.isnan(alone.columns["model_flops_utilisation"]).any()
    assert together.columns["loss"] == alone.columns["loss"]
    assert together.bad_lines == alone.bad_lines


def test_what_is_too_large_or_elsewhere_is_refused(trained, monkeypatch, tmp_path):
    folder, catalog, _ = trained
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(DescriptionError, match="larger"):
        Reader().record(catalog, only(catalog))
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text("{}\n")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to(elsewhere)
    with pytest.raises(DescriptionError, match="outside"):
        Reader().record(catalog, only(catalog))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=400), st.integers(4, 60))
@examples(0.5, derandomize=True)
def test_no_spike_is_lost_where_points_are_left_out(values, most):
    x, y = thinned(np.arange(len(values), dtype=float), np.array(values), most)
    assert len(y) <= most + 2
    assert (y.min(), y.max()) == (min(values), max(values))
    assert (np.diff(x) > 0).all()
    assert [values[int(at)] for at in x] == y.tolist()


def test_a_million_steps_are_drawn_as_few_points():
    found = Record()
    found.step.extend(range(1_000_000))
    for column in found.columns.values():
        column.frombytes(np.ones(1_000_000).tobytes())
    found.columns["loss"][123_456] = 99.0
    figure = panel([Curve("t", found)], "loss", "steps")
    assert len(figure.data[0].x) <= MAX_POINTS + 2
    assert max(figure.data[0].y) == 99.0


def record_of(losses, seconds=0.5) -> Record:
    found = Record()
    for number, loss in enumerate(losses):
        found.take(json.dumps(step_line(number, loss, seconds if np.isscalar(seconds) else seconds[number])).encode())
    return found


def test_the_predicted_rate_is_that_of_the_same_job(context, names):
    """The example was trained as `testbed/2x2x2x1-predicted` says: 16 sequences of its length over its step."""
    entry = context.catalog.entry(names["training"])
    head = context.catalog.entry(names["testbed/2x2x2x1-predicted"]).head
    tokens = head["job"]["batch"]["sequences"] * head["job"]["model"]["sequence"]
    rate = curve_of(context, entry).predicted_rate
    assert rate == pytest.approx(tokens / head["figures"]["step_seconds"], rel=1e-6)
    jobs = [e for e in context.catalog.entries() if e.kind == "predicted"]
    other = [replace(e, head={**e.head, "job": {**e.head["job"], "dropout": 0.1}}) for e in jobs]
    assert predicted_rate(context, entry, other) == (None, "")  # of that name and grid, but other work


def store(context: PageContext, page: str, query: dict[str, str] | None = None) -> Any:
    """What a page that is opened now has in a store."""
    return next(n for n in shown(context, query or {})._traverse() if getattr(n, "id", None) == page).data


def finding(text: str, where: str = "rank 3") -> dict[str, Any]:
    return {"where": where, "kind": "rank", "text": text, "confidence": 0.99}


def alert(after: int, *findings: Any) -> str:
    """A line of `alerts.jsonl`, as `--watch` writes it."""
    line = {"time": "2026-11-25T02:00:00+0000", "after_steps": after, "healthy": not findings}
    return json.dumps({**line, "findings": findings, "step_seconds": 0.5, "expected_step_seconds": 0.4}) + "\n"


@pytest.fixture
def eventful(trained):
    """A training that was started twice, went back, was warned of for two looks, and was stopped."""
    folder, catalog, add = trained
    described = json.loads((folder / "run.json").read_text())
    starts = [{"after_steps": n, "time": f"2026-11-25T0{n // 10}:00:00+0000", "ranks": 8} for n in (0, 20)]
    (folder / "run.json").write_text(json.dumps(described | {"starts": starts}))
    add({"from_step": 31, "to_step": 20, "left_out": [31], "why": "loss 9.1 is above 4.2 <b>"})
    alerts = [alert(13, finding("rank 3 is 41 % slower")), alert(23, finding("rank 3 is 43 % slower")), alert(33)]
    (folder / "alerts.jsonl").write_text("".join(alerts))
    (folder / "stopped.json").write_text('{"signal": "SIGTERM", "after_steps": 40}\n')
    return folder, catalog


HAPPENED = [
    (13, "warning", "rank 3 is 41 % slower"),
    (20, "started again", "on 8 ranks"),
    (31, "went back", "to step 20: loss 9.1 is above 4.2 <b>"),
    (33, "warning over", "rank 3 is 43 % slower"),
    (40, "stopped", "by SIGTERM"),
]


def test_what_happened_is_read_drawn_and_listed(eventful, tmp_path):
    _, catalog = eventful
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    curve = curve_of(context, only(catalog))
    assert [(one.after_steps, one.what, one.words) for one in curve.happenings] == HAPPENED
    figure = panel([curve], "loss", "steps")
    marks = {t.name.partition(", ")[2]: (list(t.x), list(t.text)) for t in figure.data if t.mode == "markers"}
    assert marks["started again"] == ([20.0], ["started again on 8 ranks"])
    assert marks["went back"] == ([31.0], ["went back to step 20: loss 9.1 is above 4.2 &lt;b&gt;"])
    assert marks["warning"] == ([13.0], ["warning rank 3 is 41 % slower"])
    listed = next(n for n in shown(context, {})._traverse() if getattr(n, "id", None) == "training-happened")
    assert [(row["after steps"], row["what"], row["words"]) for row in listed.rowData] == HAPPENED[::-1]
    assert "warned once" in health_of(curve.record, None, curve.warnings).words


def test_what_happens_is_seen_live(eventful, tmp_path):
    """A look draws anew when a warning comes, and when the run is started again, which changes `run.json` alone."""
    folder, catalog = eventful
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name, seen = only(catalog).name, store(context, "training-mark")
    for file, text in (("alerts.jsonl", alert(39, finding("rank 5 is slow", "rank 5"))), ("run.json", " ")):
        with (folder / file).open("a") as opened:
            opened.write(text)
        drawn, new, _ = look(context, 1, [name], "steps", seen, "")
        assert new != seen
        seen = new
        if file == "alerts.jsonl":
            assert isinstance(drawn, list)
            assert "rank 5 is slow" in str(drawn)
    assert not isinstance(look(context, 2, [name], "steps", seen, "")[0], list)


def test_an_open_page_sees_that_a_run_goes_on_or_begins_anew(eventful, tmp_path):
    """The same command again adds a start to `run.json`, `--force` another job; a look says so."""
    folder, catalog = eventful
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name, known = only(catalog).name, store(context, "training-mark")
    described = json.loads((folder / "run.json").read_text())
    again = {"after_steps": 40, "time": "2026-11-25T09:00:00+0000", "ranks": 6}
    (folder / "run.json").write_text(json.dumps(described | {"starts": [*described["starts"], again]}))
    (folder / "stopped.json").unlink()
    drawn, known, _ = look(context, 1, [name], "steps", known, "")
    assert "on 6 ranks" in str(drawn)
    assert "by SIGTERM" not in str(drawn)
    job = described["job"] | {"grid": {"data": 7, "z": 1, "y": 1, "x": 1}}
    (folder / "run.json").write_text(json.dumps({"name": "t", "job": job}))
    drawn, _, _ = look(context, 2, [name], "steps", known, "")
    assert "7 × 1 × 1 × 1" in str(drawn)
    assert "on 6 ranks" not in str(drawn)


def test_an_open_page_sees_what_is_predicted_meanwhile(trained, tmp_path, monkeypatch):
    """Nothing of the training itself changes; what was found is looked through anew after a while."""
    _, catalog, _ = trained
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name, known = only(catalog).name, store(context, "training-mark")
    shutil.copytree(EXAMPLES / "testbed/2x2x2x1-predicted", tmp_path / "runs" / "predicted")
    assert look(context, 1, [name], "steps", known, "") == (no_update,) * 3
    later = time.monotonic() + ANEW_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    drawn, known, _ = look(context, 2, [name], "steps", known, "")
    assert "of the predicted rate" in str(drawn)
    assert look(context, 3, [name], "steps", known, "") == (no_update,) * 3


def test_a_training_that_is_watched_says_what_it_was_started_with(eventful, tmp_path):
    """The latest look at it, `watch.json`, is the file that tells what it is; its starts and its job stand beside."""
    folder, catalog = eventful
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    (folder / "watch.json").write_text("{}")
    entry = only(catalog)
    assert entry.kind == "watch"
    assert [one.what for one in curve_of(context, entry).happenings if one.what == "started again"] == ["started again"]


@pytest.mark.parametrize("starts", ["x", [1, 2], [{}, {"after_steps": -1, "ranks": 2}], [{}, {"after_steps": 1}], {}])
@pytest.mark.parametrize("line", ["[1]", "{", '{"after_steps": 1, "findings": [1]}', '{"findings": 3}', "[" * 5000])
def test_what_strangers_say_happened_is_left_out(eventful, tmp_path, starts, line):
    folder, catalog = eventful
    (folder / "run.json").write_text(json.dumps({"starts": starts}))
    (folder / "alerts.jsonl").write_text(line + "\n")
    (folder / "stopped.json").write_text("[" + line)
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    assert [one.what for one in curve_of(context, only(catalog)).happenings] == ["went back"]


@pytest.mark.parametrize("name", ["seconds", "gradient_norm", "learning_rate", "memory_bytes", "tokens_per_second"])
def test_what_stays_the_same_stands_above_zero(name):
    """Around a constant Plotly draws from one less to one more: a rate of 0.001 stood at 0, times began at -500 ms."""
    assert panel([Curve("t", record_of(np.full(9, 2.0)))], name, "steps").layout.yaxis.rangemode == "tozero"


def test_hours_are_those_of_all_steps_not_of_those_that_were_written():
    """Every tenth step is written, with the mean of ten: an hour of them is an hour."""
    record = Record()
    for step in range(9, 100, 10):
        record.take(json.dumps(step_line(step, 2.0, seconds=36.0)).encode())
    assert along(record, "hours").tolist() == pytest.approx([0.1 * n for n in range(1, 11)])
    short = Record()
    for step in (9, 14):  # the last line of 15 steps
        short.take(json.dumps(step_line(step, 2.0, seconds=360.0)).encode())
    assert along(short, "hours").tolist() == pytest.approx([1.0, 1.5])
    watched = Record(watched=True)
    for step in range(1000, 1010):  # who watches begins anywhere
        watched.take(json.dumps(step_line(step, 2.0, seconds=3600.0)).encode())
    assert along(watched, "hours").tolist() == pytest.approx(list(range(1, 11)))


def test_the_rate_predicted_for_another_machine_is_said_to_be(context, names):
    entry = context.catalog.entry(names["training"])
    predicted = context.catalog.entry(names["testbed/2x2x2x1-predicted"])
    other = replace(predicted, head={**predicted.head, "job": {**predicted.head["job"], "machine": {"name": "alps"}}})
    rate, where = predicted_rate(context, entry, [other])
    assert (rate, where) == (predicted_rate(context, entry, [predicted])[0], "alps")
    assert predicted_rate(context, entry, [other, predicted])[1] == ""
    curve = replace(curve_of(context, entry), predicted_rate=rate, predicted_for=where)
    assert "of the predicted rate for alps" in curve.words
