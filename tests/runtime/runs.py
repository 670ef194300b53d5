"""Running `fourfold train` as a user does, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

SMALL: dict[str, Any] = {
    "name": "small",
    "machine": "laptop",
    "ranks": 2,
    "precision": "fp32",
    "recompute": False,
    "model": {"layers": 2, "hidden": 32, "heads": 4, "sequence": 16, "vocabulary": 256},
    "grid": {"data": 1, "z": 2, "y": 1, "x": 1},
    "batch": {"sequences": 8, "micro_sequences": 2},
    "train": {
        "steps": 12,
        "device": "cpu",
        "learning_rate": {"peak": 1.0e-3},
        "evaluation": {"sequences": 4},
        "checkpoints": {"every": 2},
        "sample": {"tokens": 5},
        "timeout": "60 s",
    },
}


def write_job(folder: Path, **changes: Any) -> Path:
    """Write a small job file; `train` is merged, other keys replaced."""
    train = {**SMALL["train"], **changes.pop("train", {})}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes, "train": train}), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Trained:
    """A run to its end."""

    job: Path
    out: Path
    losses: dict[int, float]
    done: subprocess.CompletedProcess[str]


Undisturbed = Callable[[int], Trained]


def command(job: Path, *arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "twin", "train", str(job), *arguments]


def environment(**extra: str) -> dict[str, str]:
    """Nothing of a launcher, one thread a rank."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    return {**kept, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **extra}


def train(job: Path, *arguments: str, timeout: float = 120, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        command(job, *arguments), capture_output=True, text=True, timeout=timeout, check=False, env=environment(**extra)
    )


def start(job: Path, *arguments: str, **extra: str) -> subprocess.Popen[str]:
    """Begin a run."""
    return subprocess.Popen(
        command(job, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**extra)
    )


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """Process numbers of the ranks, in order; of those there are by now."""
    return [number for _, number in sorted(_by_rank(process).items())]


def _by_rank(process: subprocess.Popen[str]) -> dict[int, int]:
    found = {}
    for child in _children(process.pid):
        with suppress(OSError):  # it ended meanwhile
            words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found |= {int(word[5:]): child for word in words if word.startswith(b"RANK=")}
    return found


def _children(parent: int) -> list[int]:
    # not /proc/PID/task/PID/children, which may leave some out while they run (proc(5))
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            after_name = path.read_text().rpartition(")")[2].split()
            if int(after_name[1]) == parent:
                found.append(int(path.parent.name))
    return found


def losses(out: Path) -> dict[int, float]:
    """Loss of every step that is written."""
    path = out / "metrics.jsonl"
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "step" in line}


def wait_for_step(process: subprocess.Popen[str], out: Path, step: int, seconds: float = 60) -> None:
    """Wait until a step is written."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and max(losses(out), default=-1) < step:
        assert time.monotonic() < deadline, "the run does not get ahead"
        time.sleep(0.02)


def kill_rank(process: subprocess.Popen[str], rank: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to one rank, if the run is still there."""
    deadline = time.monotonic() + 10
    while process.poll() is None:
        numbers = _by_rank(process)
        if rank in numbers:
            with suppress(ProcessLookupError):  # it ended this moment
                os.kill(numbers[rank], how)
            return
        assert time.monotonic() < deadline, f"no rank {rank} among the processes {numbers}"
        time.sleep(0.02)


def errors_at_end(process: subprocess.Popen[str], seconds: float = 60) -> str:
    """Wait for the end and return what was said on stderr; a run that goes on is an error that says in which state."""
    try:
        return process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        states = [_state(rank) for rank in ranks_of(process)]
        process.kill()
        said = process.communicate()
        pytest.fail(f"the run goes on after {seconds:g} s; its ranks: {states}; it said {said}")


def _state(number: int) -> str:
    """What a process does, of /proc: R runs, S sleeps, T is stopped; and where in the system it waits."""
    where = Path(f"/proc/{number}")
    with suppress(OSError):
        waits = (where / "wchan").read_text() if (where / "wchan").exists() else ""
        return f"{number} {(where / 'stat').read_text().rpartition(')')[2].split()[0]} {waits}"
    return f"{number} gone"
