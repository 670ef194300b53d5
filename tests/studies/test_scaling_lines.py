"""Which points of a scaling study are compared with which, and what a study says of those that cannot run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.studies.studies_files import TINY, write_study
from tests.studies.test_studies_figures import answers
from twin.cli import main
from twin.studies.derived import rows_of
from twin.studies.description import Study

SLOW = {"extends": "dgx-h100", "nic": {"bandwidth": "1 GB/s"}}
JOB: dict[str, Any] = {"strategy": "fsdp", "model": TINY["model"], "machine": SLOW, "batch": {"sequences": 64}}
CASES = [
    {"ranks": 8, "grid": {"weights": 8}, "batch.micro_sequences": 2},
    {"ranks": 32, "grid": {"weights": 32}, "batch.micro_sequences": 1},
]


@pytest.mark.parametrize("dotted", [False, True])
def test_what_goes_with_the_ranks_makes_no_lines(tmp_path, dotted):
    """Each point was a line by itself, and all were 100 % efficient."""
    points = [
        {key: value for key, value in point.items() if key != "grid"} | {"grid.weights": point["ranks"]}
        if dotted
        else point
        for point in CASES
    ]
    first, last = rows_of(answers(tmp_path, study="strong_scaling", job=JOB, points=points, grid="keep"))
    speedup = first["step_seconds"] / last["step_seconds"]
    assert (first["speedup"], last["speedup"]) == (1.0, speedup)
    assert last["efficiency"] == pytest.approx(speedup / 4)
    assert last["efficiency"] < 0.9


def test_what_is_crossed_with_the_ranks_is_another_line(tmp_path):
    """Two micro-batches of weak scaling, and two models of it, stood in one: one was 117 or 986 % efficient."""
    formulas = {"grid.weights": "ranks", "batch.sequences": "2 * ranks"}
    vary = {"batch.micro_sequences": [1, 2], "ranks": [8, 32]}
    keys = {"study": "weak_scaling", "job": {**JOB, "batch": {}}, "grid": "keep", "formulas": formulas}
    rows = rows_of(answers(tmp_path, vary=vary, **keys))
    for micro in (1, 2):
        small, large = (row for row in rows if row["micro_sequences"] == micro)
        assert small["efficiency"] == 1.0
        rate = large["hardware_flops_per_second"] / small["hardware_flops_per_second"]
        assert large["efficiency"] == pytest.approx(rate / 4)


def test_options_are_other_lines(tmp_path):
    """Of points without a common number of ranks too; and sizes of an axis that `vary` crosses with the ranks."""
    points = [{"ranks": ranks, "recompute": ranks > 16} for ranks in (8, 16, 32, 64)]
    rows = rows_of(answers(tmp_path, study="strong_scaling", job=JOB | {"batch": {"sequences": 64}}, points=points))
    assert [row.get("efficiency") == 1.0 for row in rows] == [True, False, True, False]
    vary = {"ranks": [8, 16], "grid.tensor": [1, 2]}
    study = Study.model_validate({"study": "strong_scaling", "job": JOB, "vary": vary, "grid": "keep"})
    assert study.series == ("grid.tensor",)


def test_each_machine_may_have_models_of_its_own(tmp_path):
    points = [
        {"machine": machine, "ranks": ranks, "model.layers": layers * ranks // 8, "batch.sequences": 2 * ranks}
        for machine, layers in (("dgx-h100", 2), ("perlmutter", 4))
        for ranks in (8, 16)
    ]
    run = answers(tmp_path, study="weak_scaling", job={**JOB, "batch": {}}, points=points)
    assert run.loaded.study.series == ("machine",)
    assert [row["efficiency"] == 1.0 for row in rows_of(run)] == [True, False, True, False]


def test_one_number_of_ranks_says_nothing_of_scaling(tmp_path):
    points = [{"ranks": 8, "machine": "alps", "name": "slow"}, {"ranks": 16, "machine": "dgx-h100", "name": "fast"}]
    rows = rows_of(answers(tmp_path, study="strong_scaling", job=JOB | {"grid": {"weights": 8}}, points=points))
    assert all("efficiency" not in row for row in rows)


@pytest.mark.process
@pytest.mark.quick
def test_of_what_does_not_fit_the_price_is_not_told(tmp_path, capsys):
    """Nor which points those are was to be seen on a terminal; they were dim."""
    job = {**JOB, "machine": "dgx-h100", "ranks": 8, "grid": {"weights": 8}}
    points = [{"batch.micro_sequences": 1}, {"batch.micro_sequences": 8, "model.vocabulary": 40_000_000}]
    keys = {"study": "target", "job": job, "grid": "keep", "target": {"tokens": "1 Mtokens"}}
    study = write_study(tmp_path, points=points, **keys)
    with pytest.raises(SystemExit) as ended:
        main(["study", str(study), "--out", str(tmp_path / "out")])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "point 2: does not fit into memory" in said
    marked = [line.split()[0] for line in said.splitlines() if line.rstrip().endswith("does not fit into memory")]
    assert marked == ["2"]
    fits, beyond = rows_of(answers(tmp_path, points=points, **keys))
    assert fits["target_seconds"] > 0.0
    assert beyond["step_seconds"] > 0.0
    assert "target_seconds" not in beyond
