"""Studies from file to page: what they find, that they go on, that a grid finds the same."""

from __future__ import annotations

import csv
import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.memorize.bounds import all_right
from runtime.memorize.cells import Setting
from runtime.memorize.figures import pictures
from runtime.memorize.summary import Row, Spread
from tests.runtime import asked
from tests.runtime.memorize.studies import merged, results, write_study

EXAMPLES = Path(__file__).parents[3] / "examples/memorize"
DEVIATIONS = 5
"""Of a share that chance may be away from its expectation."""


def most_exact(k: int, suffix: int, guess: float, texts: int) -> float:
    """Return the largest share of exact matches that chance leaves a model which guesses dropped tokens so well."""
    expected = all_right(k, suffix, guess)
    return expected + DEVIATIONS * sqrt(expected * (1 - expected) / texts) + 1 / texts


def pairs(found: dict[str, Any]) -> dict[tuple[str, int | None], tuple[dict[str, Any], dict[str, Any]]]:
    """Texts that were trained on and their control, by mask and k."""
    rows = {(row["mask"], row["k"], row["repeats"] > 0): row for row in found["rows"]}
    return {(mask, k): (rows[mask, k, True], rows[mask, k, False]) for mask, k, trained in rows if trained}


def check_sweep(found: dict[str, Any], suffix: int) -> None:
    """Hold a study that fits all it may against what the masks allow it to know."""
    compared = pairs(found)
    trained, control = compared.pop(("none", None))
    assert trained["exact"]["mean"] > 0.8
    assert control["exact"]["mean"] == 0
    for (mask, k), (row, beside) in compared.items():
        assert beside["exact"]["mean"] == 0
        if mask == "random":  # every target counts in some epoch
            assert row["exact"]["mean"] > 0.8
            continue
        texts = row["texts"] * row["seeds"]
        assert row["errors_at_drops"] >= 0.9
        assert row["exact"]["mean"] < trained["exact"]["mean"]
        if mask == "hash" and k <= 4:
            assert row["exact"]["mean"] <= most_exact(k, suffix, beside["accuracy"]["mean"], texts)
            assert row["accuracy"]["mean"] < trained["accuracy"]["mean"]


SWEEP = {
    "job": {
        "model": {"hidden": 48, "heads": 4, "sequence": 32},
        "batch": {"sequences": 8, "micro_sequences": 8},
        "train": {"steps": 80, "learning_rate": {"peak": 1.0e-2, "warmup_steps": 8}},
    },
    "texts": {"repeats": {0: 8, 80: 8}, "suffix": 12},
    "masks": {"hash": [2, 4, "inf"], "static": [4], "random": [4]},
}


@pytest.mark.full
def test_a_small_sweep_shows_the_effect(tmp_path, capsys):
    path = write_study(tmp_path, **SWEEP)
    out, _ = asked.ask_here(capsys, "memorize", path, "--out", tmp_path / "out")
    check_sweep(results(tmp_path / "out"), suffix=12)
    assert "exact match" in out
    page = (tmp_path / "out" / "memorize.html").read_text(encoding="utf-8")
    for title in ("Exact match against k", "First errors against first drops", "Masks compared", "All settings"):
        assert title in page
    assert "http-equiv" in page


@pytest.mark.full
def test_texts_that_move_are_repeated_under_a_mask_by_position(tmp_path, capsys):
    """With rotary positions; the hash moves with the text."""
    moved = merged(SWEEP, {"job": {"model": {"positions": "rotary"}, "train": {"steps": 160}}})
    moved = merged(moved, {"texts": {"repeats": {0: 8, 160: 8}, "shift": 1}, "masks": {"hash": [4], "static": [4]}})
    asked.ask_here(capsys, "memorize", write_study(tmp_path, **moved), "--out", tmp_path / "out")
    found = pairs(results(tmp_path / "out"))
    assert found["static", 4][0]["exact"]["mean"] > 0.8
    row, beside = found["hash", 4]
    assert row["exact"]["mean"] <= most_exact(4, 12, beside["accuracy"]["mean"], 8)


@pytest.mark.slow
def test_the_study_for_laptops_shows_the_effect(tmp_path, capsys):
    asked.ask_here(capsys, "memorize", EXAMPLES / "laptop.yaml", "--out", tmp_path / "out")
    found = results(tmp_path / "out")
    check_sweep(found, suffix=32)
    for k in (2, 3, 4):
        assert pairs(found)["hash", k][0]["exact"]["mean"] == 0


def check_sizes(found: dict[str, Any], models: list[str], suffix: int) -> None:
    """Models from small to large: more repetitions or a larger model repeat no less; the hash leaves the control."""
    rows = {(row["model"], row["mask"], row["repeats"]): row for row in found["rows"]}
    times = sorted({row["repeats"] for row in found["rows"]})
    share = [[rows[model, "none", n]["accuracy"]["mean"] for n in times] for model in models]
    exact = [[rows[model, "none", n]["exact"]["mean"] for n in times] for model in models]
    for line in (*exact, *zip(*exact, strict=True)):
        assert list(line) == sorted(line)
    assert all(line[-1] > line[0] + 0.2 for line in share)
    assert [column[0] for column in exact] == [0] * len(models)
    assert exact[-1][-1] == 1
    assert exact[-1][-2] > exact[0][-2]  # it moves with the size: the smallest needs more of them
    for model in models:
        for n in times[1:]:
            row, control = rows[model, "hash", n], rows[model, "hash", 0]
            allowed = most_exact(row["k"], suffix, control["accuracy"]["mean"], row["texts"] * row["seeds"])
            assert row["exact"]["mean"] <= allowed


SIZES = {
    "job": {
        "model": {"sequence": 32, "vocabulary": 64, "heads": 2},
        "batch": {"sequences": 8, "micro_sequences": 8},
        "train": {"steps": 104, "learning_rate": {"peak": 1.0e-2, "warmup_steps": 8}},
    },
    "models": {"small": {"model.hidden": 16}, "large": {"model.hidden": 64}},
    "texts": {"repeats": {0: 8, 24: 8, 80: 8}, "suffix": 12},
    "masks": {"hash": [4, "inf"]},
}


@pytest.mark.full
def test_a_larger_model_needs_fewer_repetitions(tmp_path, capsys):
    asked.ask_here(capsys, "memorize", write_study(tmp_path, **SIZES), "--out", tmp_path / "out")
    check_sizes(results(tmp_path / "out"), ["small", "large"], suffix=12)


@pytest.mark.slow
def test_the_study_of_sizes_shows_the_effect(tmp_path, capsys):
    asked.ask_here(capsys, "memorize", EXAMPLES / "sizes.yaml", "--out", tmp_path / "out")
    check_sizes(results(tmp_path / "out"), ["hidden 48", "hidden 96", "hidden 192"], suffix=32)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_study(tmp_path)


def test_a_study_leaves_tables_that_agree(tmp_path, capsys, small):
    out, _ = asked.ask_here(capsys, "memorize", small, "--out", tmp_path / "out", "--json")
    said, kept = json.loads(out), results(tmp_path / "out")
    assert said == kept
    names = {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")}
    assert names == {"memorize.json", "cells.jsonl", "results.json", "cells.csv", "texts.csv", "memorize.html"}
    with (tmp_path / "out" / "texts.csv").open() as file:
        texts = list(csv.DictReader(file))
    assert len(texts) == 2 * 12
    for row in said["rows"]:
        own = [t for t in texts if t["mask"] == row["mask"] and int(t["repeats"]) == row["repeats"]]
        assert row["texts"] == len(own)
        for key in ("accuracy", "subsequence"):
            assert row[key]["mean"] == pytest.approx(sum(float(t[key]) for t in own) / len(own))
        assert row["exact"]["mean"] == sum(t["exact"] == "True" for t in own) / len(own)
    counted = {row["mask"]: row["supervised_tokens"] for row in said["rows"]}
    assert counted["none"] == 10 * 8 * 24 > counted["hash"] > counted["none"] / 3


def test_a_study_goes_on_where_it_stopped(tmp_path, capsys, small):
    out = tmp_path / "out"
    asked.ask_here(capsys, "memorize", small, "--out", out)
    log, whole = out / "cells.jsonl", results(out)
    first, second = log.read_text().splitlines()
    marked = json.loads(first) | {"loss": 123.0}
    log.write_text(json.dumps(marked) + "\n" + second[: len(second) // 2])  # killed while it wrote
    asked.ask_here(capsys, "memorize", small, "--out", out)
    found = results(out)
    assert found["trained"] == 1
    assert [row["loss"] for row in found["rows"]].count(123.0) == 2  # as it was: not trained again
    assert json.loads(log.read_text().splitlines()[1])["texts"] == json.loads(second)["texts"]
    asked.ask_here(capsys, "memorize", small, "--out", out, "--force")
    assert results(out)["rows"] == whole["rows"]


def test_another_study_is_not_mixed_in(tmp_path, capsys, small):
    out = tmp_path / "out"
    asked.ask_here(capsys, "memorize", small, "--out", out)
    before = asked.files(out)
    for change in ("seeds=2", "job.train.learning_rate.peak=0.02", "texts.suffix=7", "job.seed=1"):
        _, err = asked.ask_here(capsys, "memorize", small, "--out", out, "--set", change, code=2)
        assert "holds another study" in err
    (out / "cells.jsonl").write_text("{}\n")
    assert "is damaged" in asked.ask_here(capsys, "memorize", small, "--out", out, code=2)[1]
    (out / "memorize.json").write_text("{")
    assert "was not written by" in asked.ask_here(capsys, "memorize", small, "--out", out, code=2)[1]
    assert set(asked.files(out)) == set(before)


def test_models_and_repetitions_side_by_side(tmp_path, capsys):
    path = write_study(
        tmp_path,
        models={"small": {"model.hidden": 16}, "<b>wide</b>": {"model.hidden": 32}},
        texts={"source": "standard-library", "begin": "middle", "repeats": {0: 2, 1: 2, 4: 2}, "background_steps": 2},
        job={"model": {"vocabulary": 256}, "train": {"steps": 4}},
    )
    asked.ask_here(capsys, "memorize", path, "--out", tmp_path / "out")
    rows = results(tmp_path / "out")["rows"]
    assert [(row["model"], row["repeats"]) for row in rows if row["k"] is None] == [
        (name, times) for name in ("small", "<b>wide</b>") for times in (0, 1, 4)
    ]
    page = (tmp_path / "out" / "memorize.html").read_text(encoding="utf-8")
    assert "Exact match against repetitions" in page
    assert "<b>wide" not in page


def test_repetitions_have_a_line_for_each_model_and_mask():
    """Of several models a colour says which, and a dash under which mask; of one model colours say that."""

    def row(model: str, k: int | None, repeats: int) -> Row:
        exact, nothing = Spread(0.1 * repeats, 0, 1), Spread(0, 0, 0)
        setting = Setting(model, "hash" if k else None, k)
        return Row(setting, repeats, 4, 2, exact, *[nothing] * 3, None, None, None, (), 0.0, 0.0)

    def drawn(models: list[str]) -> list[dict[str, Any]]:
        rows = [row(model, k, times) for model in models for k in (4, None) for times in (0, 2, 8)]
        first = pictures(rows, suffix=4)[0]
        assert first.title == "Exact match against repetitions"
        return first.data

    lines = drawn(["a", "b", "c"])
    assert [line["name"] for line in lines] == [f"{m}, {mask}" for m in "abc" for mask in ("hash k 4", "none k ∞")]
    for line in lines:
        assert line["x"] == ["0", "2", "8"]
        assert line["y"] == pytest.approx([0, 0.2, 0.8])
    colours = [line["line"]["color"] for line in lines]
    assert colours[::2] == colours[1::2]
    assert len(set(colours)) == 3
    assert [line["line"].get("dash") for line in lines] == ["dash", None] * 3
    alone = drawn([""])
    assert len({line["line"]["color"] for line in alone}) == 2
    assert [line["line"].get("dash") for line in alone] == [None, None]


@pytest.mark.process
@pytest.mark.parametrize("grid", [{"data": 2, "z": 1, "y": 1, "x": 1}, {"data": 1, "z": 2, "y": 2, "x": 1}], ids=str)
def test_a_grid_finds_the_same(tmp_path, capsys, grid):
    """With five texts for two micro-batches of two, so that a replica has none of its own in the end."""
    few = {"repeats": {0: 1, 4: 4}, "suffix": 4}
    small = write_study(tmp_path, job={"train": {"steps": 4}}, texts=few)
    ranks = grid["data"] * grid["z"] * grid["y"]
    asked.ask_here(capsys, "memorize", small, "--out", tmp_path / "one")
    there = ["--set", f"job.ranks={ranks}", "--set", f"job.grid={json.dumps(grid)}", "--ranks", ranks]
    done = asked.ask("memorize", small, "--out", tmp_path / "many", *there)
    assert done.returncode == 0, done.stderr
    alone, together = (results(tmp_path / name)["rows"] for name in ("one", "many"))
    assert len(alone) == len(together)
    for one, many in zip(alone, together, strict=True):
        assert many["supervised_tokens"] == one["supervised_tokens"]
        assert many["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert many["accuracy"]["mean"] == pytest.approx(one["accuracy"]["mean"], abs=0.1)


@pytest.mark.full
def test_ranks_of_megatron_learn_by_heart_too(tmp_path, capsys):
    """Who holds parameters is known by other axes than the job's grid."""
    job = {"strategy": "megatron", "flavour": "torch", "grid": {"data": 1}, "model": {"biases": False}}
    study = merged({}, SWEEP)
    path = write_study(tmp_path, **study)
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    raw["job"] = {**raw["job"], **job, "model": {**raw["job"]["model"], **job["model"]}}
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    asked.ask_here(capsys, "memorize", path, "--out", tmp_path / "out")
    check_sweep(results(tmp_path / "out"), suffix=12)
