"""A rank may die at any moment: the same command again goes on, and nothing is different."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.runtime import runs

TRIALS = [0]
MORE_TRIALS = list(range(1, 14))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[Path, dict[int, float]]:
    """A run that nobody kills: its job file and losses."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = runs.write_job(folder)
    done = runs.train(job, "--ranks", "2", "--out", str(folder / "run"))
    assert done.returncode == 0, done.stderr
    losses = runs.losses(folder / "run")
    assert list(losses) == list(range(12))
    return job, losses


def killed_and_continued(job: Path, out: Path, seed: int) -> dict[int, float]:
    """Kill random ranks at random moments, twice; then let the run finish."""
    chance = random.Random(seed)
    for _ in range(2):
        process = runs.start(job, "--ranks", "2", "--out", str(out))
        try:
            begun = max(runs.losses(out), default=-1)
            runs.wait_for_step(process, out, min(begun + chance.randint(1, 4), 10))
            time.sleep(chance.random() * 0.1)  # somewhere in a step, or while a checkpoint is written
            victim = chance.randrange(2)
            runs.kill_rank(process, victim)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        if process.returncode:  # it may have been done already
            assert process.returncode == 1
            assert f"rank {victim} was killed by signal 9 (SIGKILL)" in errors
            assert "Traceback" not in errors
    done = runs.train(job, "--ranks", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return runs.losses(out)


@pytest.mark.parametrize("seed", TRIALS)
def test_a_killed_run_continues_bit_for_bit(undisturbed, tmp_path, seed):
    job, losses = undisturbed
    assert killed_and_continued(job, tmp_path / "run", seed) == losses


@pytest.mark.slow
@pytest.mark.parametrize("seed", MORE_TRIALS)
def test_a_killed_run_continues_bit_for_bit_often(undisturbed, tmp_path, seed):
    job, losses = undisturbed
    assert killed_and_continued(job, tmp_path / "run", seed) == losses


@pytest.mark.slow
def test_a_run_continues_on_another_grid(undisturbed, tmp_path):
    _, losses = undisturbed
    out = tmp_path / "run"
    job = runs.write_job(tmp_path)
    process = runs.start(job, "--ranks", "2", "--out", str(out))
    runs.wait_for_step(process, out, 6)
    runs.kill_rank(process, 0)
    process.communicate(timeout=60)
    done = runs.train(
        job,
        "--ranks",
        "2",
        "--out",
        str(out),
        "--set",
        "grid={data: 1, z: 1, y: 2, x: 1}",
        "--set",
        "batch.micro_sequences=4",
    )
    assert done.returncode == 0, done.stderr
    assert "continuing small after step" in done.stdout
    assert runs.losses(out) == pytest.approx(losses, rel=1e-5)


def test_survivors_name_the_op_and_the_peer(tmp_path):
    job = runs.write_job(tmp_path, train={"steps": 100_000})
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--out", str(out))
    runs.wait_for_step(process, out, 3)
    runs.kill_rank(process, 1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 0 (data 0, z 0, y 0, x 0): " in errors
    assert "with rank 1 failed: a peer has probably died" in errors


def test_a_peer_that_hangs_is_an_error_after_the_time_limit(tmp_path):
    job = runs.write_job(tmp_path, train={"steps": 100_000, "timeout": "3 s"})
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--out", str(out))
    runs.wait_for_step(process, out, 3)
    runs.kill_rank(process, 1, signal.SIGSTOP)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "with rank 1 failed: a peer hangs or is too slow" in errors
    assert "stopping rank 1" in errors


def test_ranks_end_with_their_launcher(tmp_path):
    """Whether it is asked to end or killed: no orphan trains on in secret."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        job, out = runs.write_job(tmp_path, train={"steps": 100_000}), tmp_path / how.name
        process = runs.start(job, "--ranks", "2", "--out", str(out))
        runs.wait_for_step(process, out, 2)
        ranks = runs.ranks_of(process)
        process.send_signal(how)
        process.communicate(timeout=30)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{rank}").exists() for rank in ranks):
            assert time.monotonic() < deadline, "orphans"
            time.sleep(0.05)
