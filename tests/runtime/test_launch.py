"""Finding out who one is, and meeting: torchrun, srun, restarts."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.launch.environment import Process, first_host, from_environment
from runtime.launch.rank import MANY_FILES, allow_many_files
from tests.runtime import runs
from twin.description.problems import DescriptionError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_STEP_NODELIST": "frontier[00012-00013]",
    "SLURM_JOB_ID": "123456",
}


def test_torchrun_is_read():
    assert from_environment(TORCHRUN) == Process(5, 8, 1, 4, "torchrun", "node7", 29500, attempt=2, agent_store=True)


def test_srun_is_read():
    process = from_environment(SRUN)
    assert process == Process(9, 16, 1, 8, "srun", "frontier00012", 20_000 + 123456 % 12_768)
    assert from_environment({**SRUN, "MASTER_ADDR": "here", "MASTER_PORT": "7"}).address == "here"


def test_a_batch_script_that_does_not_run_srun_is_alone():
    assert from_environment({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == Process()
    assert from_environment({}) == Process()


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("frontier[00012-00015,00020]", "frontier00012"),
        ("nid001,nid002", "nid001"),
        ("nid001", "nid001"),
        ("nid[001,005]", "nid001"),
        ("node-1-[7-9]-ib", "node-1-7-ib"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_first_host_of_a_node_list(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    "broken",
    [
        {**TORCHRUN, "WORLD_SIZE": "many"},
        {**TORCHRUN, "MASTER_PORT": ""},
        {**SRUN, "SLURM_PROCID": "-1"},
        {k: v for k, v in SRUN.items() if k != "SLURM_STEP_NODELIST"},
        {**TORCHRUN, "WORLD_SIZE": "5"},
        {**TORCHRUN, "WORLD_SIZE": "0"},
        {**TORCHRUN, "WORLD_SIZE": "9" * 5000},
        {**TORCHRUN, "MASTER_PORT": "65536"},
        {**SRUN, "SLURM_PROCID": "16"},
    ],
)
def test_a_broken_environment_is_named(broken):
    with pytest.raises(DescriptionError, match=r"WORLD_SIZE|MASTER_PORT|SLURM"):
        from_environment(broken)


def test_a_host_without_processes_is_named():
    with pytest.raises(DescriptionError, match=r"LOCAL_WORLD_SIZE.*at least 1"):
        from_environment({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"})


@pytest.mark.parametrize("launched", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_an_interface_that_the_host_has_not_is_named(launched):
    assert from_environment({**launched, "GLOO_SOCKET_IFNAME": "lo"}).ranks > 1
    with pytest.raises(DescriptionError, match=r"GLOO_SOCKET_IFNAME = 'lo,hsn9': is no network interface.* lo"):
        from_environment({**launched, "GLOO_SOCKET_IFNAME": "lo,hsn9"})
    assert from_environment({"GLOO_SOCKET_IFNAME": "hsn9"}) == Process()  # nobody to talk to


def torchrun(job: Path, out: Path, *options: str) -> list[str]:
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return [*program, *options, "-m", "twin", "train", str(job), "--out", str(out)]


@pytest.mark.process
def test_torchrun_restarts_what_died(undisturbed, tmp_path):
    """gloo's restarts fail in PyTorch itself, for the store keeps dead processes' addresses; not here."""
    job, out = runs.write_job(tmp_path, train={"steps": 30}), tmp_path / "run"
    process = subprocess.Popen(
        torchrun(job, out, "--standalone", "--max-restarts", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=runs.environment(),
    )
    deadline = time.monotonic() + 60
    while max(runs.losses(out), default=-1) < 5:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(runs.ranks_of(process)[1], signal.SIGKILL)
    shown, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    assert re.search(r"continuing small after step \d+", shown)
    assert runs.losses(out) == undisturbed(30).losses


def test_a_rank_may_have_as_many_sockets_as_its_host_allows():
    """Of a thousand ranks gloo connects each with all others; a soft limit of 1,024 files ended them at the start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        allow_many_files()
        now, same = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert same == hard
        assert now == (MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
