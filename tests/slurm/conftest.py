"""One real SLURM for all tests of this folder, and what runs there are held against: the same, launched locally."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import runs
from tests.slurm.cluster import Cluster, cluster, reason_missing
from tests.tiers import makes

ROOT = Path(__file__).parents[2]
MACHINE: dict[str, Any] = {
    "extends": "laptop",
    "name": "two cores a node",
    "nodes": 3,
    "devices_per_node": 2,
    "nic": {"devices": [[0, 1]]},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "four_d": {"grid": {"data": 1, "z": 2, "y": 1, "x": 2}},
    "fsdp": {"strategy": "fsdp", "grid": {"weights": 4}},
    "ddp": {"strategy": "ddp", "grid": {"data": 4}},
}
STEPS = 24


@dataclass(frozen=True)
class Printed:
    """A job on four ranks, the script that Fourfold prints for it, and where that trains."""

    job: Path
    script: Path
    out: Path

    def said(self, number: int) -> str:
        """What SLURM has kept of the output of the script and its ranks."""
        path = self.script.parent / f"{self.out.name}-{number}.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""


Print = Callable[[Path, str], Printed]
Losses = Callable[[str], dict[int, float]]


@pytest.fixture(scope="session")
@makes("process")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller and three nodes of two cores."""
    reason = reason_missing()
    if reason is not None:
        pytest.skip(f"SLURM: {reason}")
    folder = tmp_path_factory.mktemp("slurm")
    bin_ = folder / "venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "fourfold").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m twin "$@"\n')
    (bin_ / "fourfold").chmod(0o755)
    (bin_ / "activate").write_text(f'export PATH="{bin_}:$PATH"\n')
    found = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    local = {"FOURFOLD_VENV": str(folder / "venv"), "PYTHONPATH": found, "GLOO_SOCKET_IFNAME": "lo"}
    (folder / "slurm").mkdir()
    with cluster(folder / "slurm", runs.environment(**local)) as made:
        yield made


@pytest.fixture
def printed() -> Print:
    """Print the script of a strategy's job, without the account, which is to be set or deleted."""

    def write(folder: Path, strategy: str) -> Printed:
        job = write_job(folder, strategy)
        cache = folder / "fourfold" / "cache"  # where the script would build the data set that is here already
        cache.parent.mkdir()
        cache.symlink_to(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        done = runs.train(job, "--slurm")
        assert done.returncode == 0, done.stderr
        script = folder / "job.sh"
        script.write_text(done.stdout.replace("#SBATCH --account=CHANGE_ME\n", ""), encoding="utf-8")
        return Printed(job, script, folder / "fourfold" / "runs" / strategy)

    return write


@pytest.fixture(scope="session")
@makes("process")
def undisturbed_losses(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Losses of a strategy's job launched locally; each trained once."""

    @cache
    def train(strategy: str) -> dict[int, float]:
        folder = tmp_path_factory.mktemp("local")
        done = runs.train(write_job(folder, strategy), "--ranks", "4", "--out", str(folder / "run"))
        assert done.returncode == 0, done.stderr
        losses = runs.losses(folder / "run")
        assert list(losses) == list(range(STEPS))
        return losses

    return train


def write_job(folder: Path, strategy: str) -> Path:
    """Write the job of a strategy: four ranks, which fill two nodes."""
    train = {"steps": STEPS, "checkpoints": {"every": 3}, "sample": {"tokens": 0}, "timeout": "600 s"}
    batch = {"sequences": 8, "micro_sequences": 2}
    model = {**runs.SMALL["model"], "layers": 1}
    return runs.write_job(
        folder, name=strategy, ranks=4, machine=MACHINE, model=model, batch=batch, train=train, **STRATEGIES[strategy]
    )
