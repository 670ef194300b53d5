"""Keys that follow from others, points that memory does not hold, and ORNL's space, which needs both."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twin
from tests.studies.studies_files import TINY, write_study
from twin.cli import main
from twin.description.problems import DescriptionError
from twin.strategies import load_job
from twin.studies.compute import Task, compute_point
from twin.studies.description import load_study
from twin.studies.formulas import read_formula
from twin.studies.points import points_of
from twin.studies.run import Where, run_study

ORNL = Path(twin.__file__).parents[1] / "examples" / "studies" / "ornl-175b.yaml"


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["study", *map(str, arguments)])
    return int(ended.value.code or 0)


@given(st.integers(-50, 50), st.integers(1, 50), st.integers(-50, 50))
def test_a_formula_is_arithmetic(a, b, c):
    known = {"a": a, "grid.b": b, "c": c}.__getitem__
    assert read_formula("a * grid.b + (c - 2) * 3").value(known) == a * b + (c - 2) * 3
    exact = read_formula("a * grid.b / grid.b").value(known)
    assert exact == a
    assert type(exact) is int


@pytest.mark.parametrize("text", ["", "a +", "a ** 2", "f(a)", "__import__('os')", "a[0]", "'x'", "a; b", "a < b"])
def test_a_formula_is_nothing_else(text):
    with pytest.raises(ValueError, match="cannot be read"):
        read_formula(text)


@pytest.mark.parametrize("text", ["(" * 99 + ")" * 99, "1+" * 150 + "1"])
def test_long_ones_are_refused(text):
    with pytest.raises(ValueError, match=r"cannot be read|longer"):
        read_formula(text)


def test_points_have_what_formulas_say(tmp_path):
    vary = {"nodes": [1, 2], "grid.z": [4, 8], "accumulation": [1, 3]}
    formulas = {
        "ranks": "nodes * 8",
        "grid.data": "ranks / grid.z",
        "batch.sequences": "ranks * batch.micro_sequences * accumulation",
    }
    run = run_study(write_study(tmp_path, vary=vary, formulas=formulas), tmp_path / "out", Where())
    for point, (nodes, z, times) in zip(run.points, itertools.product(*vary.values()), strict=True):
        job = load_job(run.answers[point.number]["job"])
        assert point.labels == {"nodes": nodes, "grid.z": z, "accumulation": times}
        assert (job.ranks, job.concrete_grid.by_axis()["data"], job.micro_steps) == (8 * nodes, 8 * nodes // z, times)


def test_a_point_without_a_value_is_refused_with_the_reason(tmp_path):
    keys = {"vary": {"grid.z": [8, 3]}, "formulas": {"grid.data": "ranks / grid.z"}}
    run = run_study(write_study(tmp_path, **keys), tmp_path / "out", Where())
    assert [run.answers[n]["status"] for n in (1, 2)] == ["done", "refused"]
    assert run.answers[2]["reason"] == "grid.data = ranks / grid.z: 3 does not divide 16"
    again = run_study(tmp_path / "question.yaml", tmp_path / "out", Where())
    assert again.computed == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"formulas": {"grid.z": "4"}}, "is varied too"),
        ({"formulas": {"ranks": "nods * 8"}}, "neither varies nor is a job's key"),
        ({"formulas": {"ranks": "grid.data", "grid.data": "2"}}, "worked out later"),
        ({"formulas": {"ranks": "nodes ** 8"}}, "cannot be read"),
        ({"vary": {"nodes": [1], "grid.z": [8]}}, "unknown key"),
        ({"objective": "speed"}, "objective"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, capsys, keys, said):
    study = write_study(tmp_path, **({"vary": {"grid.z": [8]}} | keys))
    assert command(study, "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err


def test_what_is_no_number_is_told_at_the_point(tmp_path):
    keys = {"vary": {"seed": [1]}, "formulas": {"ranks": "machine * 2"}}
    run = run_study(write_study(tmp_path, **keys), tmp_path / "out", Where())
    assert run.answers[1]["reason"] == "ranks = machine * 2: machine is 'frontier', and must be a number"


def test_what_does_not_fit_is_refused_if_that_is_asked_for():
    large = TINY | {"model": "gpt-320b"}
    task = Task(number=1, raw=large, engine="folded", seeds=1, only_fitting=False)
    one, other = compute_point(task), compute_point(task | {"only_fitting": True})
    assert (one["status"], other["status"]) == ("done", "refused")
    assert not one["figures"]["memory_fits"]
    assert other["figures"] == {}
    assert one["reason"].startswith("does not fit into memory")
    assert other["reason"].startswith("does not fit into memory: needs")


def test_a_sweep_over_several_factors_says_what_is_best_and_what_matters(tmp_path, capsys):
    vary = {"recompute": [True, False], "batch.sequences": [32, 64], "grid.z": [8, 7]}
    study = write_study(tmp_path, vary=vary, objective="tokens_per_second")
    assert command(study, "--out", tmp_path / "out", "--workers", 1, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    found = answer["importance"]
    assert (found["objective"], found["points"], found["feasible"]) == ("tokens_per_second", 8, 4)
    assert sum(factor["shapley_share"] for factor in found["factors"]) == pytest.approx(1)
    able = [row["tokens_per_second"] for row in answer["points"] if row["status"] == "done"]
    assert found["penalty"] == min(able)
    assert command(study, "--out", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "Importance: Shapley shares of the variance of tokens_per_second over all 8 points" in shown
    assert "the 4 points that cannot run count as the worst that can" in " ".join(shown.split())
    page = (tmp_path / "out" / "study.html").read_text(encoding="utf-8")
    assert "Which factor matters most" in page
    assert "What each value does" in page


def ornl() -> list[Any]:
    return points_of(load_study(ORNL), ORNL.parent)


def test_ornls_space_has_its_3264_points():
    points = ornl()
    assert len(points) == 6 * 4 * 17 * 2 * 2 * 2 == 3264
    able = [point for point in points if not point.refusal]
    for point in points:
        labels = point.labels
        inside = labels["grid.pipeline"] * labels["grid.tensor"]
        assert bool(point.refusal) == bool(labels["nodes"] * 8 % inside)
    for point in able[::97]:
        try:
            job = load_job(point.raw)
        except DescriptionError:
            continue
        assert job.ranks == 8 * point.labels["nodes"]
        assert job.micro_steps == point.labels["accumulation"]
        assert job.concrete_micro_sequences == point.labels["batch.micro_sequences"]


def test_ornls_model_is_a_175b_and_its_public_log_a_neighbour_of_the_space():
    job = load_job(load_study(ORNL).base)
    assert job.model.parameters == pytest.approx(175e9, rel=0.01)
