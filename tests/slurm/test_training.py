"""Printed scripts on a real SLURM, two nodes of two ranks: whatever happens, the losses are those of a local run."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runtime import runs
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import STEPS, STRATEGIES, Losses, Print, Printed
from tests.tiers import slow

pytestmark = pytest.mark.process

KILLED = 128 + signal.SIGKILL
UNDER_WAY = 4
"""A step after the first checkpoint, long before the last."""


def submitted(slurm: Cluster, printed: Printed, step: int = UNDER_WAY) -> int:
    """Submit a script; returns the job's number when a step is written."""
    number = slurm.submit(printed.script)
    get_ahead(slurm, printed, step)
    return number


def get_ahead(slurm: Cluster, printed: Printed, step: int) -> None:
    """Wait until a step is written."""
    name = printed.out.name
    slurm.wait_until(lambda: max(runs.losses(printed.out), default=-1) >= step, f"{name} stays behind step {step}")


def requeued(slurm: Cluster, number: int) -> None:
    """Wait until a job is back in the queue, and let it begin at once: SLURM would wait two minutes."""
    job = slurm.wait_for(number, "PENDING")
    assert job["Restarts"] == "1"
    slurm.ask("scontrol", "update", f"JobId={number}", "StartTime=now+3")  # credentials of this second are revoked


# those of four_d and fsdp run to their end below, in whatever happens to them
@pytest.mark.parametrize("strategy", slow(STRATEGIES, "four_d", "fsdp"))
def test_a_printed_script_trains_as_here(
    slurm: Cluster, printed: Print, undisturbed_losses: Losses, tmp_path: Path, strategy: str
) -> None:
    script = printed(tmp_path, strategy)
    number = slurm.submit(script.script)
    job = slurm.wait_for(number, "COMPLETED")
    assert (job["ExitCode"], job["NumNodes"], job["NumTasks"]) == ("0:0", "2", "4")
    assert f"training {script.out.name}" in script.said(number)
    assert runs.losses(script.out) == undisturbed_losses(strategy)


def test_the_time_limit_ends_in_a_checkpoint_and_the_job_goes_on(
    slurm: Cluster, printed: Print, undisturbed_losses: Losses, tmp_path: Path
) -> None:
    """SLURM looks at time limits twice a minute: meanwhile the ranks are stopped, and it costs no processor."""
    script = printed(tmp_path, "four_d")
    number = submitted(slurm, script)
    ranks = slurm.ranks(number)
    assert sorted(ranks) == [0, 1, 2, 3]
    for process in ranks.values():
        os.kill(process, signal.SIGSTOP)
    hours, minutes, _ = map(int, slurm.job(number)["RunTime"].split(":"))
    limit = 60 * hours + minutes + 2  # minutes; the script asks for two of warning, so it is due
    slurm.ask("scontrol", "update", f"JobId={number}", f"TimeLimit={limit}")
    slurm.wait_until(lambda: all(map(warned, ranks.values())), "SLURM does not warn the ranks")
    for process in ranks.values():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    requeued(slurm, number)
    stopped = json.loads((script.out / "stopped.json").read_text())
    assert stopped["signal"] == "SIGUSR1"
    assert UNDER_WAY < stopped["after_steps"] == len(runs.losses(script.out)) < STEPS
    slurm.ask("scontrol", "update", f"JobId={number}", "TimeLimit=120")
    slurm.wait_for(number, "COMPLETED")
    assert f"continuing {script.out.name} after step {stopped['after_steps']}" in script.said(number)
    assert runs.losses(script.out) == undisturbed_losses("four_d")


def warned(process: int) -> bool:
    """Tell whether SIGUSR1 waits for a stopped process, or has ended it: SLURM 22.05 lets it continue itself."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s+(\w+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (signal.SIGUSR1 - 1) & 1 for mask in pending)


@pytest.mark.parametrize("strategy", slow(["fsdp", "four_d"], "four_d"))
def test_a_killed_rank_starts_again_in_the_same_job(
    slurm: Cluster, printed: Print, undisturbed_losses: Losses, tmp_path: Path, strategy: str
) -> None:
    script = printed(tmp_path, strategy)
    number = submitted(slurm, script)
    os.kill(slurm.ranks(number)[3], signal.SIGKILL)
    job = slurm.wait_for(number, "COMPLETED")
    assert job["Restarts"] == "0"
    assert f"srun ended with exit code {KILLED}; start 2 in this job" in script.said(number)
    assert f"continuing {script.out.name} after step " in script.said(number)
    assert runs.losses(script.out) == undisturbed_losses(strategy)


@pytest.mark.parametrize("strategy", slow(["four_d", "fsdp"], "fsdp"))
def test_a_lost_node_puts_the_job_back_into_the_queue(
    slurm: Cluster, printed: Print, undisturbed_losses: Losses, tmp_path: Path, strategy: str
) -> None:
    """It goes on where it was, on the node that is left and one that was not needed before."""
    script = printed(tmp_path, strategy)
    number = submitted(slurm, script)
    assert slurm.job(number)["NodeList"] == "n[1-2]"
    slurm.lose_node(2)
    try:
        requeued(slurm, number)
        job = slurm.wait_for(number, "COMPLETED")
        assert job["NodeList"] == "n[1,3]"
    finally:
        slurm.mend_node(2)
    assert f"continuing {script.out.name} after step " in script.said(number)
    assert runs.losses(script.out) == undisturbed_losses(strategy)


@pytest.mark.parametrize("strategy", slow(["fsdp", "four_d", "ddp"], "four_d", "ddp"))
def test_a_cancelled_job_leaves_a_run_that_goes_on(
    slurm: Cluster, printed: Print, undisturbed_losses: Losses, tmp_path: Path, strategy: str
) -> None:
    """The step under way is finished and saved, and the same run goes on, without SLURM too."""
    script = printed(tmp_path, strategy)
    number = submitted(slurm, script)
    slurm.ask("scancel", str(number))
    slurm.wait_for(number, "CANCELLED")
    slurm.wait_until(lambda: not slurm.ranks(number), "ranks are left")
    done = len(runs.losses(script.out))
    assert json.loads((script.out / "stopped.json").read_text()) == {"signal": "SIGTERM", "after_steps": done}
    assert "in this job" not in script.said(number)  # the script did not start them again
    names = {path.name for path in script.out.rglob("*")}
    assert not [name for name in names if name.startswith(".") or name.endswith(".tmp")]
    assert f"step-{done:08d}" in names
    rest = runs.train(script.job, "--ranks", "4", "--out", str(script.out))
    assert rest.returncode == 0, rest.stderr
    assert f"continuing {script.out.name} after step {done}" in rest.stdout
    assert runs.losses(script.out) == undisturbed_losses(strategy)


def test_bad_input_is_said_once(slurm: Cluster, printed: Print, tmp_path: Path) -> None:
    """The ranks do not start again, and what is wrong is not lost when SLURM ends the others."""
    script = printed(tmp_path, "four_d")
    script.out.mkdir(parents=True)
    (script.out / "notes.txt").write_text("not a run")
    number = slurm.submit(script.script)
    assert slurm.wait_for(number, "FAILED")["ExitCode"] == "2:0"
    assert script.said(number).count("is not empty and not a run of Fourfold") == 1
