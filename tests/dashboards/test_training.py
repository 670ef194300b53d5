"""Trainings: what is read while they write, strictly; what is drawn of a million steps; whether they are healthy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.catalog import Catalog
from dashboards.figures.training import MAX_POINTS, panel, thinned
from dashboards.page import PageContext
from dashboards.pages.training import curve_of, look, mark, shown
from dashboards.settings import Settings
from dashboards.training import record as module
from dashboards.training.health import health_of
from dashboards.training.record import Reader, Record, summary_of
from tests.dashboards.serving import step_line, write_training
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
    from dashboards.figures.training import Curve

    figure = panel([Curve("t", found)], "loss", "steps")
    assert len(figure.data[0].x) <= MAX_POINTS + 2
    assert max(figure.data[0].y) == 99.0


def record_of(losses, seconds=0.5) -> Record:
    found = Record()
    for number, loss in enumerate(losses):
        found.take(json.dumps(step_line(number, loss, seconds if np.isscalar(seconds) else seconds[number])).encode())
    return found


def test_health_is_said_with_its_reasons():
    falling = 2 + 4 * 0.99 ** np.arange(300)
    assert not health_of(record_of(falling), None, 0).worries
    assert any("leapt" in w for w in health_of(record_of([*falling, 9.0]), None, 0).worries)
    assert any("rising" in w for w in health_of(record_of([*falling, *falling[::-1]]), None, 0).worries)
    slow = [0.5] * 250 + [2.0] * 50
    assert any("slower than its own" in w for w in health_of(record_of(falling, slow), None, 0).worries)
    assert any("warned" in w for w in health_of(record_of(falling), None, 2).worries)
    assert "50 % of the predicted rate" in health_of(record_of(falling), 8192, 0).words
    assert health_of(Record(), None, 0).worries == ("no step is written yet",)


def test_the_predicted_rate_is_that_of_the_same_job(context, names):
    """The example was trained as `testbed/2x2x2x1-predicted` says: 16 sequences of its length over its step."""
    entry = context.catalog.entry(names["training"])
    head = context.catalog.entry(names["testbed/2x2x2x1-predicted"]).head
    tokens = head["job"]["batch"]["sequences"] * head["job"]["model"]["sequence"]
    rate = curve_of(context, entry).predicted_rate
    assert rate == pytest.approx(tokens / head["figures"]["step_seconds"], rel=1e-6)


def test_a_live_page_draws_again_only_when_something_was_written(trained, tmp_path):
    _, catalog, add = trained
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name = only(catalog).name
    known = mark(context, [only(catalog)], "steps")
    nothing = look(context, 1, [name], "steps", known, "")
    assert nothing[1] is not None
    assert not isinstance(nothing[0], list)
    add(step_line(40, 2.0))
    drawn, new = look(context, 2, [name], "steps", known, "")
    assert isinstance(drawn, list)
    assert new != known
    assert "41 " in str(shown(context, {})) or "41" in str(drawn)
