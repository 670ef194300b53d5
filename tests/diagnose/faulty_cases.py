"""Faults at 8,192 ranks, simulated with the machine's own noise, to be found without being told.

    python -m tests.diagnose.faulty_cases [--cases 200] [--first 0]

Each case draws a machine and grid, the devices' speeds, which device is 10 % slow or which NIC has half
its rate, and the noise of every op. It is diagnosed twice: by one step alone, and with a step from
before the fault, of the same devices, as the reference.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Literal

import numpy as np

from twin.description.job import Job
from twin.diagnose.diagnose import culprits
from twin.diagnose.expected import expected
from twin.diagnose.finding import Finding
from twin.diagnose.observed import from_simulation
from twin.engine.all_ranks import AllRanks, simulate_ranks
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.engine.simulation import Simulation
from twin.strategies import load_job

RANKS = 8192
SLOWDOWN, RATE = 1.1, 0.5
BATCH = {"sequences": 8192, "micro_sequences": 2}
JOBS: tuple[dict[str, Any], ...] = (
    {"machine": "frontier", "grid": {"data": 16, "z": 256, "y": 2, "x": 1}},
    {"machine": "alps", "grid": {"data": 64, "z": 32, "y": 4, "x": 1}},
    {"machine": {"extends": "dgx-h100", "nodes": 1024}, "grid": {"data": 32, "z": 64, "y": 4, "x": 1}},
    {"machine": "frontier", "grid": {"data": 32, "z": 64, "y": 2, "x": 2}},
)
Kind = Literal["device", "nic", "none"]


@dataclass(frozen=True)
class Case:
    """One fault, or none."""

    number: int
    kind: Kind
    job: dict[str, Any]
    rank: int = -1
    node: int = -1
    nic: int = -1

    @property
    def healthy(self) -> dict[str, Any]:
        """The job without its fault."""
        return {"model": "gpt-80b", "ranks": RANKS, "batch": BATCH, **self.job}

    @property
    def faulty(self) -> dict[str, Any]:
        """The job with it."""
        if self.kind == "device":
            return {**self.healthy, "stragglers": [{"rank": self.rank, "slowdown": SLOWDOWN}]}
        if self.kind == "nic":
            return {**self.healthy, "degraded": [{"node": self.node, "nic": self.nic, "rate": RATE}]}
        return self.healthy


def drawn(number: int, kind: Kind | None = None) -> Case:
    """Draw a case: even numbers a slow device, odd ones a NIC, unless told."""
    random = Random(f"case {number}")
    raw = random.choice(JOBS)
    kind = kind or ("nic" if number % 2 else "device")
    machine = load_job({"model": "gpt-80b", "ranks": RANKS, "batch": BATCH, **raw}).machine
    rank, node = random.randrange(RANKS), random.randrange(RANKS // machine.devices_per_node)
    return Case(number, kind, raw, rank, node, random.randrange(len(machine.nic.devices)))


@cache
def _nominal(number: int) -> Simulation:
    job = _job({"model": "gpt-80b", "ranks": RANKS, "batch": BATCH, **JOBS[number]})
    return simulate(job, max_classes=MANY_CLASSES)


def _job(raw: dict[str, Any]) -> Job:
    return load_job(raw)


def diagnosed(case: Case) -> tuple[list[Finding], list[Finding], AllRanks]:
    """Name the culprits by one step alone, and with a reference; what they are worth is not asked."""
    nominal = _nominal(JOBS.index(case.job))
    devices = 1000 + case.number
    before = simulate_ranks(nominal.job, seed=2 * case.number, nominal=nominal, devices_seed=devices)
    after = simulate_ranks(_job(case.faulty), seed=2 * case.number + 1, devices_seed=devices)
    observed, should = from_simulation([after]), expected(nominal)
    alone = culprits(observed, nominal.job, should)
    return alone, culprits(observed, nominal.job, should, reference=from_simulation([before])), after


def verdict(case: Case, found: Sequence[Finding], after: AllRanks) -> tuple[bool, int]:
    """Whether the culprit was named, and how many parts were that are healthy.

    A device that is 5 % slower than the median by nature is slow, fault or not.
    """
    slowness = np.broadcast_to(after.slowness, after.job.concrete_grid.sizes).reshape(-1)
    slow = set(np.flatnonzero(slowness >= 1.05 * np.median(slowness)).tolist())
    named, wrong = False, 0
    for each in found:
        if each.kind == "device":
            named |= case.kind == "device" and each.ranks == (case.rank,)
            wrong += each.ranks[0] not in slow
        elif each.kind == "link":
            right = case.kind == "nic" and each.hosts == (case.node,)
            named |= right
            wrong += not right
        else:
            wrong += 1
    return named, wrong


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.diagnose.faulty_cases",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--healthy", action="store_true", help="no faults: what is named is wrong")
    chosen = parser.parse_args(arguments)
    counts: Counter[tuple[str, str, str]] = Counter()
    for number in range(chosen.first, chosen.first + chosen.cases):
        case = drawn(number, "none" if chosen.healthy else None)
        *found, after = diagnosed(case)
        for how, each in zip(("alone", "with a reference"), found, strict=True):
            named, wrong = verdict(case, each, after)
            row = case.kind, after.job.machine.name
            counts[(*row, how)] += 1
            counts[(*row, f"{how}, named")] += named
            counts[(*row, f"{how}, wrong")] += wrong > 0
            if wrong or (case.kind != "none" and not named):
                texts = "; ".join(f.text for f in each) or "nothing"
                sys.stderr.write(f"{case.number} {case.kind} rank {case.rank} node {case.node}, {how}: {texts}\n")
    sys.stdout.write("| fault | machine | how | cases | named | healthy parts named in |\n|---|---|---|---|---|---|\n")
    for kind, machine, how in sorted(key for key in counts if "," not in key[2]):
        row = [counts[(kind, machine, how + more)] for more in ("", ", named", ", wrong")]
        sys.stdout.write(f"| {kind} | {machine} | {how} | {' | '.join(map(str, row))} |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
