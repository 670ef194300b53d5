"""What a look at a training that grows brings: its new points alone, or all where more is new."""

from __future__ import annotations

from typing import Any

import pytest
from dash import no_update

from dashboards.catalog import Catalog
from dashboards.figures.training import panel
from dashboards.page import PageContext
from dashboards.pages.training import KINDS, curve_of, look, verdict
from dashboards.settings import Settings
from dashboards.training import growth
from tests.dashboards.serving import step_line, write_training
from tests.dashboards.test_training import only, store, trained

__all__ = ["trained"]


def test_a_look_brings_what_was_written_since_and_nothing_else(trained, tmp_path):
    """New steps come as points; all added together, a page has what one has that is opened later."""
    _, catalog, add = trained
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name = only(catalog).name
    known = store(context, "training-mark")
    assert look(context, 1, [name], "steps", known, "") == (no_update,) * 3
    have = {panel_name: ([], []) for panel_name in ("loss", "seconds", "learning_rate")}
    for steps in (range(40, 41), range(41, 44)):
        add(*(step_line(step, 2.0 + step, seconds=step / 10) for step in steps))
        drawn, known, new = look(context, 2, [name], "steps", known, "")
        assert drawn is no_update
        assert "model_flops_utilisation" not in new["points"]  # of no step known
        for panel_name, (x, y) in have.items():
            [(number, along, values)] = new["points"][panel_name]
            assert number == 0
            x.extend(along)
            y.extend(values)
        assert new["rows"][0]["steps"] == steps[-1] + 1
        assert new["said"][0]["props"] == verdict(curve_of(context, only(catalog)))
        assert look(context, 3, [name], "steps", known, "") == (no_update,) * 3
    assert have["loss"] == ([41, 42, 43, 44], [42, 43, 44, 45])
    assert have["seconds"] == ([41, 42, 43, 44], [4.0, 4.1, 4.2, 4.3])
    whole = panel([curve_of(context, only(catalog))], "seconds", "steps").data[0]
    assert list(whole.y[-4:]) == have["seconds"][1]
    assert known == store(context, "training-mark") | {"grown": 4}


def test_a_held_out_loss_and_a_checkpoint_bring_the_figure_of_the_loss(trained, tmp_path):
    folder, catalog, add = trained
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name, known = only(catalog).name, store(context, "training-mark")
    add(step_line(40, 2.0), {"after_steps": 41, "validation_loss": 1.5})
    (folder / "checkpoints" / "step-00000041").mkdir()
    drawn, known, new = look(context, 1, [name], "steps", known, "")
    assert drawn is no_update
    assert "loss" not in new["points"]
    assert new["points"]["seconds"] == [[0, [41.0], [0.5]]]
    traces = {trace["name"]: trace for trace in new["figures"]["loss"]["data"]}
    assert traces["t, validation"]["y"][-1] == 1.5
    assert traces["t, checkpoint"]["x"][-1] == 41


def test_all_is_drawn_anew_where_more_is_new_than_points(trained, tmp_path, monkeypatch):
    """Another choice, a file that was written again, a figure that comes to be, and points enough to thin them."""
    folder, catalog, add = trained
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name, known = only(catalog).name, store(context, "training-mark")

    def anew(runs: list[str], by: str, known: Any) -> Any:
        drawn, now, new = look(context, 1, runs, by, known, "")
        assert isinstance(drawn, list)
        assert new == {"anew": True}
        assert now["grown"] == 0
        return now

    anew([name], "hours", known)
    for wrong in (None, "x", {}, {"files": "", "curves": [[name, -1, "", ""]], "grown": 0}, {"curves": 3}):
        anew([name], "steps", wrong)
    other = write_training(tmp_path / "runs" / "u")
    assert other.is_dir()
    both = [entry.name for entry in catalog.entries() if entry.kind in KINDS]
    anew(both, "steps", known)
    add(step_line(40, 2.0) | {"model_flops_utilisation": 0.4})
    known = anew([name], "steps", known)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:20]) + '{"from_step": 41, "to_step": 18}\n')
    known = anew([name], "steps", known)
    monkeypatch.setattr(growth, "MAX_GROWN", 2)
    add(*(step_line(step, 2.0) for step in range(19, 22)))
    anew([name], "steps", known)


def test_a_look_at_what_is_known_does_not_walk_through_directories(trained, tmp_path, monkeypatch):
    _, catalog, add = trained
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    name, known = only(catalog).name, store(context, "training-mark")
    monkeypatch.setattr(Catalog, "_directories", lambda _: pytest.fail("walked"))
    assert look(context, 1, [name], "steps", known, "") == (no_update,) * 3
    add(step_line(40, 2.0))
    assert look(context, 2, [name], "steps", known, "")[2]["points"]["loss"] == [[0, [41.0], [2.0]]]


def test_a_curve_is_one_that_a_browser_can_add_to(trained, tmp_path):
    """Plotly adds to lists that it was given, and finds them by the number of their training."""
    _, catalog, _ = trained
    context = PageContext(Settings(tmp_path / "runs"), catalog)
    curve = curve_of(context, only(catalog))
    for name in ("loss", "seconds"):
        found = [trace for trace in panel([curve, curve], name, "steps").to_plotly_json()["data"] if "meta" in trace]
        assert [trace["meta"] for trace in found] == [0, 1]
        assert all(isinstance(trace[axis], list) for trace in found for axis in "xy")
