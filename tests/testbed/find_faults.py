"""Is the culprit found? Random faults on the test bed, traced, and told apart without being told.

    python -m tests.testbed.find_faults --machine FILE [--runs 40] [--seed 0] [--out DIR]

Each run trains a job on a random grid of 8 ranks on 4 hosts of 2 with a random fault (`faults`),
and traces some steps. Then `fourfold diagnose` looks at each trace; it knows the job, the
machine and the trace, not the fault. `found.json` holds both.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from tests.testbed.faults import KINDS, Fault, drawn, injected, limited, no_limits
from tests.testbed.launch import run_ranks
from tests.testbed.network import Hosts, hosts, reason_missing
from tests.testbed.scenarios import RATE, SCENARIOS, grids
from twin.diagnose.diagnose import diagnose_trace

HOSTS, PER_HOST = 4, 2
FIRST_STEP, LAST_STEP = 2, 9
LIMIT_SECONDS = 3600.0
NICENESS = -15


def planned(number: int, machine: str, fault: Fault) -> dict[str, Any]:
    """One run: its job, and which ranks get what of the fault."""
    grid = Random(f"grid {number}").choice(list(grids(HOSTS * PER_HOST)))
    raw = SCENARIOS[0].job(grid, machine)
    train = {
        "data": "standard-library",
        "steps": LAST_STEP + 1,
        "evaluation": {"every": 0, "sequences": 0},
        "checkpoints": {"every": 0},
        "sample": {"tokens": 0},
        "timeout_seconds": 120,
        "threads": 1,
    }
    waits = {str(fault.where): fault.amount} if fault.kind == "data" else {}
    return {
        "name": f"run{number:03d}",
        "job": {**raw, "train": train},
        "steps": [FIRST_STEP, LAST_STEP],
        "limited": list(fault.slow_ranks(PER_HOST)),
        "waits": waits,
    }


def run_all(numbers: list[int], machine: Path, out: Path) -> dict[int, Fault]:
    """Run them all, one after another, in one world of processes."""
    faults = {number: drawn(number, HOSTS, PER_HOST) for number in numbers}
    with ExitStack() as stack:
        jobs = [planned(number, str(machine), fault) for number, fault in faults.items()]
        plan = out / "plan.json"
        plan.write_text(json.dumps({"out": str(out), "jobs": jobs}), encoding="utf-8")
        network = stack.enter_context(hosts(HOSTS, RATE))
        names = [job["name"] for job in jobs]
        for name in names:
            for ending in ("go", "done"):
                (out / f"{name}.{ending}").unlink(missing_ok=True)
        conductor = threading.Thread(
            target=conduct, args=(list(zip(names, faults.values(), strict=True)), network, out), daemon=True
        )
        conductor.start()
        command = [sys.executable, "-m", "tests.testbed.faulty_worker", str(plan)]
        run_ranks(command, network, PER_HOST, time_limit_seconds=LIMIT_SECONDS, niceness=NICENESS)
        conductor.join()
    return faults


def conduct(runs: list[tuple[str, Fault]], network: Hosts, out: Path) -> None:
    """Have each run's fault in the network while it runs."""
    for number, (name, fault) in enumerate(runs):
        with injected(fault, network), ExitStack() as stack:
            (out / f"{name}.go").touch()
            for rank in fault.slow_ranks(PER_HOST):
                group = stack.enter_context(limited(fault.amount, f"{name}-{rank}"))
                told = out / f"{name}.{rank}.pid"
                until(told.exists)
                (group / "cgroup.procs").write_text(told.read_text(encoding="ascii"), encoding="ascii")
                told.unlink()
            until((out / f"{name}.done").exists)
        sys.stderr.write(f"{number + 1} of {len(runs)} runs\n")


def until(true: Callable[[], bool]) -> None:
    """Wait for something to be true."""
    while not true():
        time.sleep(0.02)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.testbed.find_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--machine", type=Path, required=True, help="the calibrated machine file")
    parser.add_argument("--out", type=Path, default=Path("testbed-faults"))
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--judge-only", action="store_true", help="of runs that are there")
    parser.add_argument("--kinds", default=",".join(KINDS), help="only faults of these kinds")
    parser.add_argument("--seed", type=int, default=0, help="number of the first run")
    chosen = parser.parse_args(arguments)
    if reason := reason_missing() or no_limits():
        sys.stderr.write(f"no test bed here: {reason}\n")
        return 2
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    kinds = chosen.kinds.split(",")
    numbers = [
        number
        for number in range(chosen.seed, chosen.seed + chosen.runs)
        if drawn(number, HOSTS, PER_HOST).kind in kinds
    ]
    if not chosen.judge_only:
        run_all(numbers, chosen.machine.resolve(), out)
    found = [judged(number, out) for number in numbers]
    (out / "found.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.stdout.write(summary(found))
    return 0


def judged(number: int, out: Path) -> dict[str, Any]:
    """Diagnose one trace, and say whether the fault was named, and nothing else."""
    fault = drawn(number, HOSTS, PER_HOST)
    diagnosis, job = diagnose_trace(out / f"run{number:03d}-trace")
    named = [
        (each.kind, each.ranks[0] if len(each.ranks) == 1 else each.hosts[0] if each.hosts else -1)
        for each in diagnosis.findings
    ]
    words = {"rank": "device", "host": "host", "link": "link", "data": "loading"}
    right = named == ([] if fault.kind == "none" else [(words[fault.kind], fault.where)])
    return {
        "run": number,
        "grid": str(job.concrete_grid),
        "fault": fault.as_json(),
        "right": right,
        "step_seconds": diagnosis.step_seconds,
        "findings": [each.as_json() for each in diagnosis.findings],
    }


def summary(found: list[dict[str, Any]]) -> str:
    """Count, by kind of fault."""
    lines = ["| fault | runs | named, and nothing else | named other things | nothing named |", "|---|---|---|---|---|"]
    for kind in KINDS:
        runs = [each for each in found if each["fault"]["kind"] == kind]
        right = sum(each["right"] for each in runs)
        silent = sum(not each["findings"] for each in runs)
        wrong = sum(bool(each["findings"]) and not each["right"] for each in runs)
        lines.append(f"| {kind} | {len(runs)} | {right} | {wrong} | {silent} |")
    right = sum(each["right"] for each in found)
    return "\n".join([*lines, f"\n{right} of {len(found)} right\n"])


if __name__ == "__main__":
    raise SystemExit(main())
