"""What a step takes of the machine's cores: counted by the kernel while grids run on the test bed.

    python -m tests.testbed.processor_time [--scenario NAME] [--out DIR] GRID ...       (such as 8x1x1x1 4x2x1x1)

Steps run without a listener, and everything on the machine counts, so nothing else should be on it. Prints a line a
grid: seconds of the median step, of cores in it, of these in the kernel (its networking included), and switches.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.testbed.launch import run_ranks
from tests.testbed.network import hosts
from tests.testbed.scenarios import SCENARIOS
from tests.testbed.validate import HOSTS, LIMIT_SECONDS, NICENESS, PER_HOST, WARMUP

STEPS = 40
LOOK_SECONDS = 0.05
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
USER, KERNEL = (0, 1), (2, 5, 6)
"""Columns of `/proc/stat`: user and nice; system and both kinds of interrupts."""


@dataclass(frozen=True)
class Look:
    """What the kernel has counted up to a moment of the monotonic clock."""

    at_ns: int
    user_seconds: float
    kernel_seconds: float
    switches: int


def look() -> Look:
    """Read the kernel's counts."""
    at_ns, lines = time.monotonic_ns(), Path("/proc/stat").read_text(encoding="ascii").splitlines()
    ticks = [int(word) for word in lines[0].split()[1:]]
    user, kernel = (TICK_SECONDS * sum(ticks[column] for column in columns) for columns in (USER, KERNEL))
    return Look(at_ns, user, kernel, next(int(line.split()[1]) for line in lines if line.startswith("ctxt ")))


@dataclass
class Watch:
    """Looks again and again, in a thread of its own."""

    looks: list[Look] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.looks.append(look())


def line(result: dict[str, Any], looks: list[Look]) -> str:
    """Say what a step took of a grid that ran; raises ValueError if it ran too briefly to tell."""
    steps = result["steps"]
    begin, end = min(steps[0]["start_ns"]), max(steps[-1]["end_ns"])
    inside = [each for each in looks if begin <= each.at_ns <= end]
    if len(inside) < 2:
        raise ValueError(f"{result['label']}: its steps were over within {LOOK_SECONDS} s")
    first, last = inside[0], inside[-1]
    seconds = median(step["seconds"] for step in steps)
    a_step = seconds / ((last.at_ns - first.at_ns) / 1e9)
    kernel = (last.kernel_seconds - first.kernel_seconds) * a_step
    cores = (last.user_seconds - first.user_seconds) * a_step + kernel
    switches = (last.switches - first.switches) * a_step
    return (
        f"{result['label']}: {seconds:.3f} s a step, {cores:.3f} s of cores, {kernel:.3f} s of them in the kernel, "
        f"{switches:,.0f} switches"
    )


def main() -> None:
    """Run the grids one after another, and print what each took."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("grids", nargs="+", metavar="GRID", help="data x z x y x x, such as 4x2x1x1")
    options.add_argument("--scenario", default="base", choices=[scenario.name for scenario in SCENARIOS])
    options.add_argument("--out", type=Path, default=Path("testbed-out/processor-time"))
    chosen = options.parse_args()
    scenario = next(one for one in SCENARIOS if one.name == chosen.scenario)
    known = dict(scenario.jobs(HOSTS * PER_HOST, "laptop"))
    if unknown := [grid for grid in chosen.grids if grid not in known]:
        options.error(f"no grid of the scenario: {', '.join(unknown)}; there are {', '.join(known)}")
    out: Path = chosen.out
    out.mkdir(parents=True, exist_ok=True)
    jobs = [
        {"name": known[grid]["name"], "label": grid, "job": known[grid], "warmup": WARMUP, "timed": STEPS}
        for grid in chosen.grids
    ]
    plan = out / "plan.json"
    plan.write_text(json.dumps({"out": str(out), "jobs": jobs}), encoding="utf-8")
    command = [sys.executable, "-m", "tests.testbed.worker", str(plan)]
    with hosts(HOSTS, scenario.rate_bits_per_second) as made, Watch() as watch:
        run_ranks(command, made, PER_HOST, time_limit_seconds=LIMIT_SECONDS, niceness=NICENESS)
    for job in jobs:
        print(line(json.loads((out / f"{job['name']}.json").read_text(encoding="utf-8")), watch.looks))


if __name__ == "__main__":
    main()
