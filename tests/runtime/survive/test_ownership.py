"""A run's directory belongs to one start at a time: a healthy one is not ended by another."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

import pytest

from runtime.launch.environment import from_environment
from runtime.parallel.failures import TakenOverError
from runtime.parallel.host import HOST
from runtime.records.ownership import OWNER, Ownership
from tests.runtime import runs
from twin.description.problems import DescriptionError


def test_a_second_start_on_the_same_host_is_refused(tmp_path):
    first = Ownership.claim(tmp_path)
    with pytest.raises(DescriptionError, match="is in use by a start of this run that is alive") as refused:
        Ownership.claim(tmp_path)
    for needle in (f"process {os.getpid()} on ", " since 20", "UTC", f"kill -TERM {os.getpid()}", "another --out"):
        assert needle in str(refused.value)
    first.check()
    first.release()
    Ownership.claim(tmp_path).release()


def test_a_process_number_that_was_taken_again_is_no_owner(tmp_path):
    """Only the lock says that an owner lives: here the number is that of this very process."""
    Ownership.claim(tmp_path).release()
    assert f'"pid": {os.getpid()}' in (tmp_path / OWNER).read_text()
    Ownership.claim(tmp_path).release()


def test_another_host_is_taken_over_and_ends(tmp_path, monkeypatch):
    monkeypatch.setenv(HOST, "a")
    first = Ownership.claim(tmp_path)
    monkeypatch.setenv(HOST, "b")
    second = Ownership.claim(tmp_path)
    with pytest.raises(TakenOverError, match="has taken over; this one ends"):
        first.check()
    first.release()
    second.check()
    with pytest.raises(DescriptionError, match="alive"):  # the lock is the second one's by now
        Ownership.claim(tmp_path)
    second.release()


def test_a_later_round_of_the_same_torchrun_job_takes_over(tmp_path):
    first = Ownership.claim(tmp_path, "my-run")
    with pytest.raises(DescriptionError):
        Ownership.claim(tmp_path, "other-run")
    Ownership.claim(tmp_path, "my-run").release()
    with pytest.raises(TakenOverError):
        first.check()
    first.release()


def test_a_torchrun_job_without_a_name_of_its_own_has_none():
    launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
    assert from_environment({**launched, "TORCHELASTIC_RUN_ID": "a"}).launch == "a"
    assert from_environment({**launched, "TORCHELASTIC_RUN_ID": "none"}).launch == ""
    assert from_environment(launched).launch == ""


@pytest.mark.parametrize("before", ["", "0123456789abcdef\n", "{}", "[1]", "\x00\xff" * 9])
def test_what_an_older_version_or_a_crash_left_is_taken_over(tmp_path, before):
    (tmp_path / OWNER).write_text(before)
    owned = Ownership.claim(tmp_path)
    owned.check()
    owned.release()


def test_where_a_file_system_knows_no_locks_the_last_start_goes_on(tmp_path, monkeypatch):
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    first, second = Ownership.claim(tmp_path), Ownership.claim(tmp_path)
    with pytest.raises(TakenOverError):
        first.check()
    second.check()
    first.release()
    second.release()


@pytest.mark.process
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["continued", "forced"])
def test_a_run_that_lives_goes_on_and_one_that_is_killed_is_taken_over_at_once(tmp_path: Path, force):
    grid = {"data": 1, "z": 1, "y": 1, "x": 1}
    job, out = runs.write_job(tmp_path, ranks=1, grid=grid, train={"steps": 100_000}), tmp_path / "run"
    process = runs.start(job, "--out", str(out))
    runs.wait_for_step(process, out, 3)
    second = runs.train(job, "--out", str(out), *force)
    assert second.returncode == 2, second.stderr
    assert f"process {process.pid} on " in second.stderr
    assert "Traceback" not in second.stderr
    assert process.poll() is None
    runs.wait_for_step(process, out, max(runs.losses(out)) + 3)  # nothing was deleted, and it has not noticed
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = runs.start(job, "--out", str(out))
    runs.wait_for_step(again, out, max(runs.losses(out)) + 3)
    again.send_signal(signal.SIGTERM)
    shown, errors = again.communicate(timeout=60)
    assert (again.returncode, errors) == (0, "")
    assert "continuing" in shown
