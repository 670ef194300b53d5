"""A run of weeks, stop by stop.

Between two stops a run repeats one cycle: work, then stand still to save. A stop loses what was done
since the last state that survives it, and costs a restart and reading that state; it may come while
saving or restarting too. Everything is drawn from one seed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from twin.study.goodput.plan import Mode, Plan


@dataclass(frozen=True)
class Policy:
    """How state is saved."""

    mode: Mode
    interval_seconds: float
    """Work between two checkpoints; in mode `memory` between two copies in a neighbour's memory."""
    disk_interval_seconds: float = 3600.0
    """Work between two checkpoints on the file system in mode `memory`."""
    spares: int | None = None
    """Nodes that can take the place of failed ones at once; None: always enough."""


@dataclass(frozen=True)
class Cycle:
    """What a run repeats: so much work, then so long standing still.

    Every `per_disk` cycles state goes to the file system, where it is `lag` seconds after the cycle's end.
    """

    work: float
    still: float
    per_disk: int
    lag: float
    in_memory: bool
    """Whether each cycle leaves a copy in a neighbour's memory."""

    @property
    def seconds(self) -> float:
        """Length of one cycle."""
        return self.work + self.still


@dataclass
class Account:
    """Where the time of one run went, seconds; the parts add up to `total`."""

    total: float
    useful: float = 0.0
    lost: float = 0.0
    """Work that was done and had to be done again."""
    saving: float = 0.0
    """Steps standing still for checkpoints."""
    restarting: float = 0.0
    """Restarts and reading."""
    waiting: float = 0.0
    """For a node, when there was no spare."""
    stops: int = 0

    @property
    def goodput(self) -> float:
        """Share of the time that was useful."""
        return self.useful / self.total


def cycle_of(plan: Plan, policy: Policy) -> Cycle:
    """Work out what a run with this policy repeats.

    A checkpoint that is written in the background must be whole before the next one begins.
    """
    interval = policy.interval_seconds
    if policy.mode == "sync":
        return Cycle(interval, plan.write_seconds, 1, 0.0, in_memory=False)
    if policy.mode == "async":
        wait = max(0.0, plan.write_seconds - interval)
        return Cycle(interval, wait + plan.copy_seconds, 1, plan.write_seconds, in_memory=False)
    still = plan.copy_seconds + plan.neighbour_seconds
    per_disk = max(
        1,
        round(policy.disk_interval_seconds / interval),
        ceil(plan.write_seconds / (interval + still)),
    )
    return Cycle(interval, still, per_disk, plan.write_seconds, in_memory=True)


def run(plan: Plan, policy: Policy, seconds: float, seed: int) -> Account:
    """Simulate so many seconds of a run."""
    rng = np.random.default_rng([seed, 77])
    rate = plan.host_failures_per_second + plan.job_failures_per_second
    cycle, account = cycle_of(plan, policy), Account(seconds)
    out: list[float] = []  # when nodes that failed are back
    on_disk = in_memory = 0.0  # work that the saved states hold
    now, next_stop = 0.0, _drawn(rng, rate)
    while now < seconds:
        begun = max(on_disk, in_memory)
        until = min(next_stop, seconds)
        span = until - now
        cycles = floor(span / cycle.seconds)
        rest = span - cycles * cycle.seconds
        worked = cycles * cycle.work + min(rest, cycle.work)
        account.useful += worked
        account.saving += span - worked
        now = until  # not now + span, which may be rounded to before it
        if now < next_stop:
            break
        written = floor((span - cycle.lag) / (cycle.per_disk * cycle.seconds))
        if written > 0:
            on_disk = begun + written * cycle.per_disk * cycle.work
        if cycle.in_memory and cycles > 0:
            in_memory = begun + cycles * cycle.work
        survives = max(on_disk, in_memory)
        account.useful -= begun + worked - survives
        account.lost += begun + worked - survives
        while now >= next_stop and now < seconds:  # also if it fails again before it goes on
            account.stops += 1
            if rng.random() * rate < plan.host_failures_per_second:
                heapq.heappush(out, now + float(rng.exponential(plan.repair_seconds)))
            now = _wait_for_nodes(policy, account, now, seconds, out)
            next_stop = now + _drawn(rng, rate)
            now = _restart(
                plan, account, now, min(next_stop, seconds), from_memory=in_memory > on_disk
            )
    return account


def _drawn(rng: np.random.Generator, rate: float) -> float:
    return float(rng.exponential(1.0 / rate)) if rate > 0.0 else float("inf")


def _wait_for_nodes(
    policy: Policy, account: Account, now: float, seconds: float, out: list[float]
) -> float:
    """Wait until no more nodes are out than there are spares."""
    while out and out[0] <= now:
        heapq.heappop(out)
    if policy.spares is None or len(out) <= policy.spares or now >= seconds:
        return now
    back = min(sorted(out)[len(out) - policy.spares - 1], seconds)
    account.waiting += back - now
    return back


def _restart(plan: Plan, account: Account, now: float, end: float, *, from_memory: bool) -> float:
    """Start anew and read the state, no longer than until `end`."""
    read = plan.neighbour_seconds + plan.copy_seconds if from_memory else plan.read_seconds
    spent = max(0.0, min(plan.restart_seconds + read, end - now))
    account.restarting += spent
    return end if spent == end - now else now + spent
