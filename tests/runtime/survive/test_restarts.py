"""`--restarts`: the ranks are started again after any failure, and nothing is different in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runtime import runs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[Path, dict[int, float]]:
    """A run that nobody disturbs: its job file and losses."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = runs.write_job(folder, train={"steps": 20, "timeout": "4 s"})
    done = runs.train(job, "--ranks", "2", "--out", str(folder / "run"))
    assert done.returncode == 0, done.stderr
    return job, runs.losses(folder / "run")


def test_killed_and_stopped_ranks(undisturbed, tmp_path):
    """Rank 1 is killed, then rank 0 stopped for good: two restarts."""
    job, losses = undisturbed
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


def test_no_restart_is_left(undisturbed, tmp_path):
    job, _ = undisturbed
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--restarts", "1", "--out", str(out))
    for step in (3, 6):
        runs.wait_for_step(process, out, step)
        runs.kill_rank(process, 0)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.count("restart 1 of at most 1") == 1


def test_bad_input_is_not_tried_again(tmp_path):
    job = runs.write_job(tmp_path, train={"data": "nowhere"})
    done = runs.train(job, "--ranks", "2", "--restarts", "5", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "again" not in done.stderr


def test_restarts_are_the_launchers_own(tmp_path):
    job = runs.write_job(tmp_path)
    done = runs.train(job, "--restarts", "1", RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
    assert done.returncode == 2
    assert "torchrun --max-restarts" in done.stderr


def test_a_signal_ends_a_run_that_would_be_started_again(undisturbed, tmp_path):
    job, _ = undisturbed
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--restarts", "3", "--out", str(out))
    runs.wait_for_step(process, out, 2)
    process.send_signal(signal.SIGTERM)
    shown, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "SIGTERM: stopped after step" in shown


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
