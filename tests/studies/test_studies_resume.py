"""A study that is interrupted goes on where it stopped: real signals, torn files, changed studies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.studies.studies_files import write_study
from twin.cli import main
from twin.description.problems import DescriptionError
from twin.studies.compute import compute_point
from twin.studies.directory import code_digest, read_log, study_directory
from twin.studies.run import Where, run_study

POINTS = 60
SWEEP = {"vary": {"model.layers": list(range(4, 4 + POINTS))}}
FIRST = 4
"""Points after which a run is interrupted."""


def start(study: Path, out: Path, workers: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "twin",
        "study",
        str(study),
        "--out",
        str(out),
        "--workers",
        str(workers),
        "--json",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def lines(out: Path) -> list[bytes]:
    log = out / "points.jsonl"
    return log.read_bytes().splitlines() if log.exists() else []


def interrupt(process: subprocess.Popen[bytes], out: Path, least: int, number: int) -> None:
    """Send a signal, as a terminal does to all of the session for SIGINT, when enough is finished."""
    deadline = time.monotonic() + 120
    while len(lines(out)) < least and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)


def alive(session: int) -> list[str]:
    """Processes of a session that are left."""
    found = subprocess.run(["ps", "-s", str(session), "-o", "pid=,args="], capture_output=True, text=True, check=False)
    return [line for line in found.stdout.splitlines() if "defunct" not in line]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.process
def test_killed_again_and_again_it_repeats_nothing(tmp_path, workers):
    """SIGKILL, Ctrl-C and SIGTERM in turn; then it is finished, and every point was written once."""
    study, out = write_study(tmp_path, **SWEEP), tmp_path / "out"
    finished: list[bytes] = []
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        process = start(study, out, workers)
        interrupt(process, out, len(finished) + FIRST, number)
        _, errors = process.communicate(timeout=60)
        if process.returncode == 0:
            pytest.fail("the study was finished before it could be interrupted")
        assert process.returncode == (-9 if number == signal.SIGKILL else 130)
        assert b"Traceback" not in errors
        deadline = time.monotonic() + 20
        while left := alive(process.pid):  # workers leave with the process that started them
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        now = lines(out)
        assert now[: len(finished)] == finished
        assert not (out / "table.csv").exists()
        finished = [line for line in now if line.endswith(b"}")]
    process = start(study, out, workers)
    printed, _ = process.communicate(timeout=120)
    answer = json.loads(printed)
    assert answer["done"] == POINTS
    assert answer["resumed"] == len(read_before := {json.loads(line)["number"] for line in finished})
    assert answer["computed"] == POINTS - len(read_before)
    numbers = Counter(json.loads(line)["number"] for line in lines(out))
    assert numbers == dict.fromkeys(range(1, POINTS + 1), 1)
    whole = run_study(study, tmp_path / "at once", Where(workers=1))
    steps = [whole.answers[n]["figures"]["step_seconds"] for n in range(1, POINTS + 1)]
    assert [row["step_seconds"] for row in answer["points"]] == steps


@pytest.fixture
def finished(tmp_path):
    """A small study that is finished, with its file."""
    study = write_study(tmp_path, vary={"model.layers": [1, 2, 3]})
    run = run_study(study, tmp_path / "out", Where())
    assert run.computed == 3
    return study, tmp_path / "out"


def test_a_line_cut_short_anywhere_is_computed_again(finished):
    study, out = finished
    log = out / "points.jsonl"
    whole = log.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in (last + 1, (last + len(whole)) // 2, len(whole) - 1):
        log.write_bytes(whole[:cut])
        assert sorted(read_log(log)) == [1, 2]
        assert log.read_bytes() == whole[:last]  # nothing is ever appended to half a line
        log.write_bytes(whole[:cut])
        run = run_study(study, out, Where())
        assert run.computed == 1
        assert [json.loads(x)["number"] for x in log.read_bytes().splitlines()] == [1, 2, 3]


def test_what_a_killed_process_left_half_written_goes(finished):
    study, out = finished
    for place in (out / ".123.0123abcd.study.json", out / "jobs" / ".9.fedcba98.00001.yaml"):
        place.write_text("half")
    assert run_study(study, out, Where()).computed == 0
    names = {".lock", "study.json", "points.jsonl", "jobs"}
    assert {p.name for p in out.iterdir()} == names
    assert all(p.name[0] != "." for p in (out / "jobs").iterdir())


def test_a_finished_study_computes_nothing(finished, monkeypatch):
    study, out = finished
    monkeypatch.setattr("twin.studies.run.compute_point", None)
    assert run_study(study, out, Where()).computed == 0


def test_a_changed_study_is_refused_and_force_starts_over(finished):
    study, out = finished
    (out / "notes.txt").write_text("mine")
    changed = write_study(study.parent, vary={"model.layers": [1, 2, 5]})
    with pytest.raises(DescriptionError, match="before it was changed; start over with --force"):
        run_study(changed, out, Where())
    with pytest.raises(DescriptionError, match="before it was changed"):
        run_study(changed, out, Where(), overrides=["recompute=false"])
    assert run_study(changed, out, Where(), force=True).computed == 3
    assert (out / "notes.txt").read_text() == "mine"


def test_other_code_is_refused(finished):
    study, out = finished
    manifest = json.loads((out / "study.json").read_text())
    assert manifest["code"] == code_digest()
    (out / "study.json").write_text(json.dumps(manifest | {"code": "0.0.1+abc"}))
    with pytest.raises(DescriptionError, match=r"computed by 0\.0\.1\+abc.*must not be mixed"):
        run_study(study, out, Where())


def test_two_at_once_are_refused(finished):
    study, out = finished
    manifest = {k: v for k, v in json.loads((out / "study.json").read_text()).items() if k != "code"}
    with study_directory(out, manifest, force=False), pytest.raises(DescriptionError, match="another process"):
        run_study(study, out, Where())


def test_a_damaged_log_is_told(finished):
    study, out = finished
    log = out / "points.jsonl"
    log.write_bytes(b"{broken\n" + log.read_bytes())
    with pytest.raises(DescriptionError, match=r"line 1.*is damaged"):
        run_study(study, out, Where())


def test_places_that_hold_something_else_are_left_alone(tmp_path, capsys):
    study = write_study(tmp_path, vary={"seed": [1, 2]})
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("precious")
    for arguments in (["--out", str(full)], ["--out", str(full), "--force"], ["--out", str(study)]):
        with pytest.raises(SystemExit) as ended:
            main(["study", str(study), *arguments])
        assert ended.value.code == 2
    assert [p.name for p in full.iterdir()] == ["thesis.tex"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "study.json").write_text("[1]")
    with pytest.raises(SystemExit):
        main(["study", str(study), "--out", str(foreign), "--force"])
    assert "was not written by `fourfold study`" in capsys.readouterr().err
    assert (foreign / "study.json").read_text() == "[1]"


def test_points_that_crashed_are_tried_again(finished, monkeypatch):
    study, _ = finished
    out = study.parent / "unlucky"

    def unlucky(*_):
        raise MemoryError

    monkeypatch.setattr("twin.studies.compute.simulate_point", unlucky)
    run = run_study(study, out, Where())
    assert {a["status"] for a in run.answers.values()} == {"crashed"}
    assert run.answers[1]["reason"] == "MemoryError"
    monkeypatch.undo()
    assert run_study(study, out, Where()).computed == 3
    assert {a["status"] for a in read_log(out / "points.jsonl").values()} == {"done"}


def test_a_point_is_an_answer_whatever_its_job():
    answer = compute_point({"number": 1, "raw": {"machine": 3}, "engine": "folded", "seeds": 1, "only_fitting": False})
    assert answer["status"] == "refused"
    assert "machine" in answer["reason"]
