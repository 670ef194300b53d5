"""One's own measured runs: jobs with what was measured of them, and files that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from twin.cli import main
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.validate.measurements import validate_file

ONE_H100 = Path("examples/measured/h100-one-device.yaml")
ONE_H200 = Path("examples/measured/h200-one-device.yaml")
JOB = {
    "model": {"layers": 2, "hidden": 256, "heads": 4, "sequence": 128, "vocabulary": 1000},
    "machine": "dgx-h100",
    "ranks": 8,
    "grid": {"z": 8},
    "batch": {"sequences": 16, "micro_sequences": 2},
}
ROW = {"id": "one", "job": "small", "source": "here", "step_seconds": 0.001}


def written(folder: Path, rows: Any, jobs: Any = None) -> Path:
    path = folder / "runs.yaml"
    path.write_text(yaml.safe_dump({"jobs": {"small": JOB} if jobs is None else jobs, "rows": rows}))
    return path


def test_each_row_is_its_job_with_its_changes(tmp_path):
    again = ROW | {"id": "two", "set": ["recompute=false", "batch.micro_sequences=1"], "peak_memory_bytes": 1e9}
    found = validate_file(written(tmp_path, [ROW, again]))
    one, two = load_job(JOB), load_job(JOB, ["recompute=false", "batch.micro_sequences=1"])
    assert [row["predicted"] for row in found.rows] == [simulate(one).step_seconds, simulate(two).step_seconds]
    assert [row["measured"] for row in found.rows] == [0.001, 0.001]
    assert [(group.name, group.count) for group in found.groups] == [("here", 2)]
    (piece,) = found.pieces
    assert (piece.id, piece.measured, piece.predicted) == ("two", 1e9, memory_use(two).per_rank_bytes)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "rows"),
        ([5], "rows.0 = 5: must be the keys of a run"),
        ([ROW | {"job": "smal"}], "did you mean 'small'?"),
        ([ROW | {"job": ["small"]}], "rows.0 (one).job"),
        ([ROW | {"step_seconds": 0}], "rows.0 (one).step_seconds = 0: must be a number above 0"),
        ([ROW | {"step_seconds": float("inf")}], "must be a number above 0"),
        ([ROW | {"traced_step_joules": -1}], "rows.0 (one).traced_step_joules = -1: must be a number above 0"),
        ([ROW | {"peak_memory_bytes": "much"}], "rows.0 (one).peak_memory_bytes"),
        ([{key: value for key, value in ROW.items() if key != "source"}], "rows.0 (one).source: missing"),
        ([ROW | {"set": "recompute=true"}], "rows.0 (one).set"),
        ([ROW | {"set": ["recompute"]}], "one: --set"),
        ([ROW | {"set": ["model.layer=3"]}], "one: model.layer"),
        ([ROW | {"set": ["grid=auto"]}], "auto is what a search finds; say what was run"),
    ],
)
def test_wrong_files_are_refused(tmp_path, rows, said):
    with pytest.raises(DescriptionError) as raised:
        validate_file(written(tmp_path, rows))
    assert said in str(raised.value)


def test_a_machine_of_ones_own_lies_beside_the_file(tmp_path):
    (tmp_path / "ours.yaml").write_text("{extends: dgx-h100, name: ours, nodes: 2}")
    found = validate_file(written(tmp_path, [ROW], {"small": JOB | {"machine": "ours.yaml"}}))
    job = load_job(JOB | {"machine": str(tmp_path / "ours.yaml")})
    assert found.rows[0]["predicted"] == simulate(job).step_seconds


def test_jobs_must_be_jobs(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--measurements", str(written(tmp_path, [ROW], {"small": 3}))])
    assert ended.value.code == 2
    assert "must be jobs by name" in capsys.readouterr().err


@pytest.mark.parametrize("path", [ONE_H100, ONE_H200], ids=lambda path: path.stem)
def test_the_allocator_of_a_gpu_gave_out_what_the_twin_counts(path):
    """Peaks of PyTorch's allocator: eager, fused, recomputed, with all scores, offloaded: within half a per cent."""
    found = validate_file(path)
    assert len(found.pieces) == 6
    for piece in found.pieces:
        assert piece.predicted == pytest.approx(piece.measured, rel=0.005), piece.id


def test_measured_joules_have_the_twins_beside_them(tmp_path):
    found = validate_file(written(tmp_path, [ROW | {"traced_step_joules": 5.0}, ROW | {"id": "two"}]))
    first, second = found.rows
    assert (first["traced_step_joules"], first["predicted_joules"]) == (
        5.0,
        report(simulate(load_job(JOB))).energy_joules,
    )
    assert "predicted_joules" not in second


def test_a_machine_that_was_measured_predicts_its_steps():
    """Calibration times no step; each of three models, two kernels of attention."""
    rows = [row for row in validate_file(ONE_H200).rows if "calibrated" in row["group"]]
    assert len(rows) == 4
    for row in rows:
        assert abs(row["error"]) < 0.06, row["id"]


def test_steps_on_one_gpu_lie_inside_their_intervals():
    assert all(row["inside"] for row in validate_file(ONE_H100).rows)
