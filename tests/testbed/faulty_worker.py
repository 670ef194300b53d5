"""One rank that trains many jobs, one after another, with whatever fault each was given.

    python -m tests.testbed.faulty_worker PLAN.json

The plan: {"out": directory, "jobs": [{"name", "job": mapping, "steps": [first, last] to trace,
"limited": [rank, …], "waits": {rank: seconds}}, …]}. Before a job every rank waits for `NAME.go`; a
limited one writes its process number to `NAME.RANK.pid` and goes on when that file is gone. After the
job rank 0 writes `NAME.done`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from runtime.data import batches
from runtime.launch.environment import from_environment
from runtime.plan.options import located
from runtime.plan.plan import Plan
from runtime.tracing.wanted import TraceWanted
from runtime.train.trainer import train
from tests.testbed.worker import leave
from twin.strategies import load_job

POLL_SECONDS = 0.02


def main(path: Path) -> None:
    """Run a plan."""
    plan = json.loads(path.read_text(encoding="utf-8"))
    out = Path(plan["out"])
    for number, entry in enumerate(plan["jobs"]):
        while not (out / f"{entry['name']}.go").exists():
            time.sleep(POLL_SECONDS)
        child = os.fork()
        if child == 0:
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + number)
            leave(partial(trained, entry, out))
        _, status = os.waitpid(child, 0)
        if code := os.waitstatus_to_exitcode(status):
            raise RuntimeError(f"{entry['name']} ended with exit code {code}")
        if os.environ["RANK"] == "0":
            (out / f"{entry['name']}.done").touch()


def trained(entry: dict[str, Any], out: Path) -> None:
    """Train one job on this rank, as `fourfold train --trace` does, with the rank's part of the fault."""
    process = from_environment(os.environ)
    if process.rank in entry["limited"]:
        told = out / f"{entry['name']}.{process.rank}.pid"
        told.with_suffix(".partial").write_text(str(os.getpid()), encoding="ascii")
        told.with_suffix(".partial").replace(told)
        while told.exists():
            time.sleep(POLL_SECONDS)
    if seconds := entry["waits"].get(str(process.rank)):
        read = batches.Batches.sequences

        def slowly(self: batches.Batches, first: int, count: int) -> Any:
            time.sleep(seconds)
            return read(self, first, count)

        batches.Batches.sequences = slowly  # type: ignore[method-assign]  # this process is the fault
    job = load_job(entry["job"], [])
    first, last = entry["steps"]
    wanted = TraceWanted(out / f"{entry['name']}-trace", first, last, overwrite=True)
    train(Plan(job, located(job.train, out), out / f"{entry['name']}-run", wanted, force=True), process)


if __name__ == "__main__":
    leave(lambda: main(Path(sys.argv[1])))
