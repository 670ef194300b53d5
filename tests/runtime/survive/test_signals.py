"""A signal ends a run in a checkpoint, after the same step on all ranks, whoever gets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.launch.board import Board
from runtime.launch.environment import Process
from runtime.launch.signals import Notice
from runtime.survive.stop import Stop
from tests.profiles import examples
from tests.runtime import runs

pytestmark = pytest.mark.process


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that saves nothing until it is told to stop."""
    return runs.write_job(tmp_path, train={"steps": 30, "checkpoints": {"every": 0}})


def stopped_at(shown: str, name: str) -> int:
    pattern = rf"^{name}: stopped after step (\d+) of 30, saved; the same command continues"
    found = re.search(pattern, shown, re.MULTILINE)
    assert found, shown
    return int(found[1])


def finish(process: subprocess.Popen[str]) -> str:
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors == ""
    return shown


@pytest.mark.parametrize(
    ("how", "victims"),
    [
        pytest.param(signal.SIGTERM, None, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, None, marks=pytest.mark.slow),
        (signal.SIGUSR1, (1,)),
        pytest.param(signal.SIGTERM, (0, 1), marks=pytest.mark.slow),
    ],
    ids=["launcher", "warning", "one rank", "each rank"],
)
def test_the_run_ends_in_a_checkpoint_and_goes_on(undisturbed, job, tmp_path, how, victims):
    losses = undisturbed(30).losses
    out = tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--out", str(out))
    runs.wait_for_step(process, out, 3)
    if victims is None:
        process.send_signal(how)
    else:
        for victim in victims:
            runs.kill_rank(process, victim, how)
            time.sleep(0.02)
    step = stopped_at(finish(process), how.name)
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    assert list(runs.losses(out)) == list(range(step))
    said = json.loads((out / "stopped.json").read_text())
    assert said == {"signal": how.name, "after_steps": step}
    done = runs.train(job, "--ranks", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"continuing small after step {step} " in done.stdout
    assert runs.losses(out) == losses
    assert not (out / "stopped.json").exists()


def test_a_signal_while_ranks_are_started_waits_until_they_listen(undisturbed, job, tmp_path):
    """Nobody dies of it, and the run ends after its first step."""
    losses = undisturbed(30).losses
    process = runs.start(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    while len(runs.ranks_of(process)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert stopped_at(finish(process), "SIGTERM") == 1
    assert runs.losses(tmp_path / "run") == {0: losses[0]}


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path):
    """Even where the other rank is not there to end a step with."""
    job, out = runs.write_job(tmp_path, train={"steps": 100_000}), tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--out", str(out))
    runs.wait_for_step(process, out, 3)
    ranks = runs.ranks_of(process)
    runs.kill_rank(process, 1, signal.SIGSTOP)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(1.2)  # sooner it would be taken for the same one
    os.kill(ranks[0], signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "a second signal (SIGTERM): leaving at once" in errors
    assert time.monotonic() - begin < 30  # the limit for a collective is 60 s
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


ONE = {"data": 1, "z": 1, "y": 1, "x": 1}


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "how"), [("auto", signal.SIGTERM), (ONE, signal.SIGUSR1)])
def test_one_process_alone(tmp_path, grid, how):
    job = runs.write_job(tmp_path, ranks=1, grid=grid, train={"steps": 30})
    out = tmp_path / "run"
    many = runs.environment(OPENBLAS_NUM_THREADS="3")
    del many["OMP_NUM_THREADS"]  # as users have it: numpy starts threads of its own
    process = subprocess.Popen(
        runs.command(job, "--out", str(out)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=many
    )
    runs.wait_for_step(process, out, 3)
    process.send_signal(how)
    step = stopped_at(finish(process), how.name)
    assert (out / "checkpoints" / f"step-{step:08d}").is_dir()


MASKS = """
import os, sys
from pathlib import Path
from runtime import commands
from runtime.launch import local
from twin.cli import main

def tell(*arguments, **options):
    for task in Path("/proc/self/task").iterdir():
        fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        print("blocked", fields["SigBlk"].strip())
    sys.stdout.flush()
    os._exit(0)

commands._train_here = local.run_ranks = tell
main(sys.argv[1:])
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_thread_is_hit_by_a_signal_before_the_run_listens(tmp_path, ranks):
    """Of a process that trains; a launcher hears signals itself. Nothing is trained here."""
    grid = "auto" if ranks == 1 else {**ONE, "z": 2}
    job = runs.write_job(tmp_path, ranks=ranks, grid=grid)
    many = runs.environment(OPENBLAS_NUM_THREADS="3")
    del many["OMP_NUM_THREADS"]
    arguments = ["train", str(job), "--ranks", str(ranks), "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", MASKS, *arguments], capture_output=True, text=True, env=many, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    masks = [int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("blocked")]
    for number in (signal.SIGTERM, signal.SIGUSR1):
        assert all(bool(mask >> (number - 1) & 1) == (ranks == 1) for mask in masks), masks
    if ranks == 1:
        assert len(masks) > 1  # else nothing was seen


class Shared:
    """A store of one process, for ranks that are threads: what `Board` asks of torch's."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


@examples(0.6)
@given(
    ranks=st.integers(2, 4),
    steps=st.integers(1, 8),
    stride=st.integers(1, 3),
    heard=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=4),
    seed=st.integers(0, 2**31),
)
def test_all_ranks_end_after_the_same_step_however_they_are_scheduled(ranks, steps, stride, heard, seed):
    """Ranks as threads that wait for each other in every step, and look after each `stride`-th."""
    import random

    store = Shared()
    notices = [Notice() for _ in range(ranks)]
    barrier = threading.Barrier(ranks)
    ended = [0] * ranks

    def run(rank: int) -> None:
        chance = random.Random(seed + rank)
        stop = Stop(Board(store, Process(rank=rank, ranks=ranks)), notices[rank])  # type: ignore[arg-type]  # a stand-in
        for step in range(steps):
            if (rank, step) in heard:
                notices[rank].signal = "SIGTERM"
            stop.announce(min(step - step % stride + stride, steps))
            time.sleep(chance.random() * 2e-4)
            barrier.wait(10)
            time.sleep(chance.random() * 2e-4)
            done = step + 1
            ended[rank] = done
            if (done % stride == 0 or done == steps) and done < steps and stop.due(done):
                break

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(ended)) == 1, ended
    early = [step for rank, step in heard if rank < ranks and step < steps]
    if not early:
        assert ended[0] == steps
    else:  # at the latest two looks after the first signal
        assert ended[0] <= min(steps, (min(early) // stride + 3) * stride)
