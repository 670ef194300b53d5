"""A rank may die at any moment: the same command again goes on, and nothing is different."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.runtime import runs

pytestmark = pytest.mark.process

TRIALS = [0]
MORE_TRIALS = list(range(1, 14))


def killed_and_continued(job: Path, out: Path, seed: int, kills: int = 2, ranks: int = 2) -> dict[int, float]:
    """Kill random ranks at random moments; then let the run finish."""
    chance = random.Random(seed)
    for _ in range(kills):
        process = runs.start(job, "--ranks", str(ranks), "--out", str(out))
        try:
            begun = max(runs.losses(out), default=-1)
            runs.wait_for_step(process, out, min(begun + chance.randint(1, 4), 10))
            time.sleep(chance.random() * 0.1)  # somewhere in a step, or while a checkpoint is written
            victim = chance.randrange(ranks)
            runs.kill_rank(process, victim)
            errors = runs.errors_at_end(process)
        finally:
            process.kill()
        if process.returncode:  # it may have been done already
            assert process.returncode == 1
            assert f"rank {victim} was killed by signal 9 (SIGKILL)" in errors
            assert "Traceback" not in errors
    done = runs.train(job, "--ranks", str(ranks), "--out", str(out))
    assert done.returncode == 0, done.stderr
    return runs.losses(out)


@pytest.mark.quick
def test_a_run_that_is_killed_once_continues_bit_for_bit(undisturbed, tmp_path):
    whole = undisturbed(12)
    assert killed_and_continued(whole.job, tmp_path / "run", 0, kills=1) == whole.losses


@pytest.mark.parametrize("seed", TRIALS)
def test_a_killed_run_continues_bit_for_bit(undisturbed, tmp_path, seed):
    whole = undisturbed(12)
    assert killed_and_continued(whole.job, tmp_path / "run", seed) == whole.losses


@pytest.mark.slow
@pytest.mark.parametrize("seed", MORE_TRIALS)
def test_a_killed_run_continues_bit_for_bit_often(undisturbed, tmp_path, seed):
    whole = undisturbed(12)
    assert killed_and_continued(whole.job, tmp_path / "run", seed) == whole.losses


@pytest.mark.slow
def test_a_run_continues_on_another_grid(undisturbed, tmp_path):
    losses = undisturbed(12).losses
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
    errors = runs.errors_at_end(process)
    assert process.returncode == 1
    assert "rank 0 (data 0, z 0, y 0, x 0): " in errors
    assert "with rank 1 failed: a peer has probably died" in errors


def test_a_peer_that_hangs_is_an_error_after_the_time_limit(tmp_path):
    job = runs.write_job(tmp_path, train={"steps": 100_000, "timeout": "3 s"})
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--out", str(out))
    runs.wait_for_step(process, out, 3)
    runs.kill_rank(process, 1, signal.SIGSTOP)
    errors = runs.errors_at_end(process)
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
