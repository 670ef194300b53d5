"""`fourfold train JOB --smoke`: a minute on one device before many are asked for."""

from __future__ import annotations

import os

from rich.console import Console

from runtime.launch.environment import from_environment
from runtime.launch.need import need_torch
from twin.description.job import Job

# PyTorch comes when it is known to be there.
# ruff: noqa: PLC0415

SECONDS = 60.0


def run_smoke(job: Job, seconds: float = SECONDS) -> int:
    """Try every path of a job's kind on this process's device; returns the exit code: 1 if one has failed."""
    need_torch("train")
    from runtime.launch.devices import place_name
    from runtime.launch.meeting import choose_device
    from runtime.smoke.cases import CASES
    from runtime.smoke.run import smoke
    from runtime.smoke.show import table

    device = choose_device(job.train.device, from_environment(os.environ))
    console = Console()
    console.print(f"{len(CASES)} paths on {place_name(device, 1)}, a small model of the family of {job.model.name}")
    found = []
    for seen in smoke(job, device, seconds):
        found.append(seen)
        if console.is_terminal:
            console.print(f"  {seen.name}: {seen.error or 'ok'}", highlight=False)
    console.print(table(found))
    failed = [one for one in found if one.error and not one.skipped]
    console.print(f"{len(failed)} of {len(found)} failed" if failed else "all that there is works here")
    return 1 if failed else 0
