"""`--restarts`: the ranks are started again after any failure, and nothing is different in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st

from runtime.commands import _trace_wanted
from runtime.launch import local
from runtime.launch.environment import Process
from runtime.launch.rank import run_as_rank
from runtime.parallel.collectives import CollectiveError
from runtime.parallel.failures import DivergedError, NonFiniteError, TakenOverError
from runtime.records.run_directory import (
    ALERTS,
    LATEST_LOOK,
    MAX_STARTS,
    add_to_run,
    note_start,
    prepare_directory,
    read_run,
)
from runtime.tracing.wanted import TraceWanted
from runtime.train.run import Run
from runtime.train.showing import trace_is_ahead
from runtime.watch import lookout
from tests.runtime import runs
from twin.description.problems import DescriptionError


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job whose ranks wait for each other four seconds."""
    return runs.write_job(tmp_path, train={"steps": 30, "timeout": "4 s"})


@pytest.mark.process
@pytest.mark.slow
def test_killed_and_stopped_ranks(undisturbed, job, tmp_path):
    """Rank 1 is killed, then rank 0 stopped for good: two restarts."""
    losses = undisturbed(30).losses
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--restarts", "2", "--out", str(out), "--force")
    runs.wait_for_step(process, out, 4)
    runs.kill_rank(process, 1)
    runs.wait_for_step(process, out, 10)
    runs.kill_rank(process, 0, signal.SIGSTOP)
    shown, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    again = "starting all 2 ranks again from the newest checkpoint, restart"
    assert f"fourfold: rank 1 was killed by signal 9 (SIGKILL); {again} 1 of at most 2" in errors
    assert f"fourfold: rank 1 failed, rank 0 hung; {again} 2 of at most 2" in errors
    assert shown.count("continuing small after step") == 2
    assert runs.losses(out) == losses
    starts = json.loads((out / "run.json").read_text())["starts"]
    assert [each["ranks"] for each in starts] == [2, 2, 2]
    assert sorted(each["after_steps"] for each in starts) == [each["after_steps"] for each in starts]


@pytest.mark.process
def test_no_restart_is_left(job, tmp_path):
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--restarts", "1", "--out", str(out))
    for step in (3, 6):
        runs.wait_for_step(process, out, step)
        runs.kill_rank(process, 0)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.count("restart 1 of at most 1") == 1


@pytest.mark.process
def test_bad_input_is_not_tried_again(tmp_path):
    job = runs.write_job(tmp_path, train={"data": "nowhere"})
    done = runs.train(job, "--ranks", "2", "--restarts", "5", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "again" not in done.stderr


@pytest.mark.parametrize(("codes", "starts", "said"), [((3, 1), 1, 1), ((2, 1), 1, 2), ((1, 1), 3, 1), ((0, 0), 1, 0)])
@pytest.mark.process
def test_what_would_fare_no_better_is_not_tried_again(monkeypatch, codes, starts, said):
    """Processes that end with these codes in place of ranks."""
    started = []

    def start(_arguments, rank, *_):
        started.append(rank)
        end = f"import time; time.sleep(0.2 * {rank}); raise SystemExit({codes[rank]})"
        return subprocess.Popen([sys.executable, "-c", end])

    monkeypatch.setattr(local, "_start", start)
    assert local.run_ranks(["train"], 2, restarts=2) == said
    assert started == [0, 1] * starts


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NonFiniteError("NaN"), 3),
        (DivergedError("a leap"), 3),
        (TakenOverError("gone"), 3),
        (CollectiveError("a peer is lost"), 1),
    ],
)
def test_who_starts_again_is_told_that_there_is_no_use(monkeypatch, error, told):
    def work() -> None:
        raise error

    monkeypatch.setattr(local, "end_with_parent", lambda: None)
    for launcher, code in (("fourfold", told), ("srun", told), ("torchrun", 1), ("alone", 1)):
        with pytest.raises(typer.Exit) as ended:
            run_as_rank(Process(launcher=launcher), work)
        assert ended.value.exit_code == code


@pytest.mark.parametrize(("gone", "code"), [(True, 0), (False, 1)], ids=["the reader", "another"])
def test_a_reader_that_has_gone_is_no_failure(capsys, monkeypatch, gone, code):
    """But who reads from a process of ours is."""

    def work() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as out:
        if gone:
            os.dup2(os.open(os.devnull, os.O_RDONLY), reading)
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(typer.Exit) as ended:
            run_as_rank(Process(), work)
    assert ended.value.exit_code == code
    assert ("Broken pipe" in capsys.readouterr().err) != gone


def test_a_full_disk_is_no_defect(capsys):
    def work() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(typer.Exit) as ended:
        run_as_rank(Process(), work)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "fourfold: [Errno 28] No space left on device\n"


@pytest.mark.process
def test_a_run_goes_on_where_what_it_shows_finds_no_space(undisturbed, tmp_path):
    """As with `fourfold train … > log` on a disk that is full."""
    whole, out = undisturbed(12), tmp_path / "run"
    with Path("/dev/full").open("w") as full:
        command = runs.command(whole.job, "--ranks", "2", "--out", str(out))
        done = subprocess.run(command, stdout=full, stderr=full, timeout=120, check=False, env=runs.environment())
    assert done.returncode == 0
    assert runs.losses(out) == whole.losses


def trace_of_a_run_at(step: int, process: Process, first: int, last: int) -> tuple[bool, list[str]]:
    """Whether a run that goes on there is traced, and what it warns of."""
    warned: list[str] = []
    plan = SimpleNamespace(trace=TraceWanted(Path("trace"), first, last))
    return trace_is_ahead(plan, process, step, SimpleNamespace(warn=warned.append)), warned


def test_a_trace_does_not_defeat_restarts():
    again = Process(launcher="fourfold", attempt=1)
    for process in (again, Process(launcher="torchrun"), Process(launcher="srun", attempt=1)):
        text = "the run goes on at step 30: no trace of steps 3-5 is written"
        assert trace_of_a_run_at(30, process, 3, 5) == (False, [text])
    for step in (3, 4, 5):  # what is left of them can be recorded
        assert trace_of_a_run_at(step, again, 3, 5) == (True, [])
    for process in (Process(), Process(launcher="fourfold")):
        with pytest.raises(DescriptionError, match="goes on at step 30; choose later ones"):
            trace_of_a_run_at(30, process, 3, 5)


def test_a_trace_that_was_written_before_the_failure_stays(tmp_path):
    assert _trace_wanted(tmp_path, "3-5", 9, Process(launcher="fourfold", attempt=1), force=False) is None
    with pytest.raises(DescriptionError, match="exists already"):
        _trace_wanted(tmp_path, "3-5", 9, Process(launcher="fourfold"), force=False)


@pytest.mark.process
@pytest.mark.slow
def test_a_traced_run_is_started_again(undisturbed, job, tmp_path):
    losses = undisturbed(30).losses
    out = tmp_path / "run"
    process = runs.start(
        job,
        "--ranks",
        "2",
        "--restarts",
        "1",
        "--out",
        str(out),
        "--trace",
        str(tmp_path / "trace"),
        "--trace-steps",
        "1-2",
    )
    runs.wait_for_step(process, out, 8)
    runs.kill_rank(process, 1)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    assert errors.count("no trace of steps 1-2 is written") == 1
    assert runs.losses(out) == losses


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.booleans(), st.integers(1, 40))
def test_on_gpus_hosts_look_at_every_step_that_is_shown_or_kept(log, disk, memory, judged, best, steps):
    """A copy of what nobody has looked at might be of a step that did not happen; so might the best state."""
    kept = SimpleNamespace(every=disk, memory_every=memory, best=best)
    evaluation = SimpleNamespace(every=judged, sequences=8)
    run = object.__new__(Run)
    options = SimpleNamespace(log_every=log, checkpoints=kept, evaluation=evaluation, steps=steps)
    run.plan = SimpleNamespace(options=options)
    run.context = SimpleNamespace(device=torch.device("cuda"))
    looked = (log, disk, memory, judged if best else 0)
    wanted = [step for step in range(1, steps + 1) if step == steps or any(n and step % n == 0 for n in looked)]
    assert [run._next_look(done) for done in (0, *wanted[:-1])] == wanted


def test_every_start_is_written_down(tmp_path):
    """Of a run that is started again and again the latest thousand; what is no list is begun anew."""
    prepare_directory(tmp_path, {"name": "small"}, force=False)
    for after in (0, 7):
        note_start(tmp_path, after, 2)
    first, second = read_run(tmp_path)["starts"]
    assert (first["after_steps"], second["after_steps"], second["ranks"]) == (0, 7, 2)
    assert second["time"][:2] == "20"
    add_to_run(tmp_path, {"starts": [first] * MAX_STARTS})
    note_start(tmp_path, 9, 2)
    starts = read_run(tmp_path)["starts"]
    assert (len(starts), starts[-1]["after_steps"]) == (MAX_STARTS, 9)
    add_to_run(tmp_path, {"starts": "x"})
    note_start(tmp_path, 9, 2)
    assert len(read_run(tmp_path)["starts"]) == 1


def test_what_watching_left_is_part_of_a_run(tmp_path):
    assert (ALERTS, LATEST_LOOK) == (lookout.ALERTS, lookout.LATEST)
    out, identity = tmp_path / "run", {"name": "small"}
    prepare_directory(out, identity, force=False)
    for force, left in ((False, {"run.json", ALERTS}), (True, {"run.json"})):
        for name in (ALERTS, LATEST_LOOK):
            (out / name).write_text("{}\n")
        prepare_directory(out, identity, force=force)
        assert {path.name for path in out.iterdir()} == left


@pytest.mark.process
def test_restarts_are_the_launchers_own(tmp_path):
    job = runs.write_job(tmp_path)
    done = runs.train(job, "--restarts", "1", RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
    assert done.returncode == 2
    assert "torchrun --max-restarts" in done.stderr


@pytest.mark.process
@pytest.mark.slow
def test_a_signal_ends_a_run_that_would_be_started_again(job, tmp_path):
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--restarts", "3", "--out", str(out))
    runs.wait_for_step(process, out, 2)
    process.send_signal(signal.SIGTERM)
    shown, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "SIGTERM: stopped after step" in shown


@pytest.mark.process
@pytest.mark.slow
def test_a_run_that_is_started_beside_itself_gives_way(tmp_path):
    """As when torchrun takes a host for dead that is not: the last start goes on."""
    job, out = runs.write_job(tmp_path, train={"steps": 100_000}), tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--out", str(out))
    runs.wait_for_step(process, out, 3)
    (out / "owner").write_text("another\n")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{out}: another start of this run has taken over; this one ends" in errors
    assert "Traceback" not in errors


@pytest.mark.process
@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(tmp_path):
    """Checkpoints fail, the run goes on, and the last one is good: all steps are the same."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        job = runs.write_job(tmp_path, train={"steps": 150, "checkpoints": {"every": 4}})
        out = disk / "run"
        process = runs.start(job, "--ranks", "2", "--out", str(out))
        runs.wait_for_step(process, out, 5)
        fill(disk / "filler")
        time.sleep(2)
        (disk / "filler").unlink()
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        assert "No space left on device" in errors
        assert "training goes on" in errors
        whole = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "undisturbed"))
        assert whole.returncode == 0, whole.stderr
        assert runs.losses(out) == runs.losses(tmp_path / "undisturbed")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)


def fill(path: Path) -> None:
    """Write until there is no space."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"0" * size)
