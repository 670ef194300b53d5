"""A run of weeks, stop by stop.

Between two stops a run repeats one cycle: work, then stand still to save. A stop loses what was done
since the last state that survives it, and costs a restart and reading that state; it may come while
saving or restarting too. A slow device stops nothing until it is found: then state is saved, and the
run starts anew without it. Everything is drawn from one seed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from twin.goodput.cycle import Cycle, Policy, Span, cycle_of, saving_at_once, slowed, steady
from twin.goodput.long_run import LongRun
from twin.goodput.slow import Slowness, drawn

__all__ = ["Account", "Policy", "run"]


@dataclass
class Account:
    """Where the time of one run went, seconds; the parts add up to `total`."""

    total: float
    useful: float = 0.0
    """Work that counts, at the speed of healthy steps."""
    slow: float = 0.0
    """What steps took longer than healthy ones, whether their work counted or was lost."""
    lost: float = 0.0
    """Work that was done and had to be done again."""
    saving: float = 0.0
    """Steps standing still for checkpoints."""
    restarting: float = 0.0
    """Restarts and reading."""
    waiting: float = 0.0
    """For a node, when there was no spare."""
    stops: int = 0
    """That nobody wanted."""
    replaced: int = 0
    """Slow devices that were found: stops that were wanted."""

    @property
    def goodput(self) -> float:
        """Share of the time that was useful."""
        return self.useful / self.total


def run(plan: LongRun, policy: Policy, seconds: float, seed: int) -> Account:
    """Simulate so many seconds of a run."""
    rng = np.random.default_rng([seed, 77])
    rate = plan.host_failures_per_second + plan.job_failures_per_second
    cycle, account = cycle_of(plan, policy), Account(seconds)
    slowness = drawn(plan.slowdowns, seconds, seed)
    out: list[float] = []  # when nodes that failed are back
    on_disk = in_memory = 0.0  # work that the saved states hold
    now, next_stop = 0.0, _drawn(rng, rate)
    while now < seconds:
        begun = max(on_disk, in_memory)
        found = slowness.next_found(now)
        until = min(next_stop, found, seconds)
        span = _gone_on(cycle, slowness, now, until)
        account.useful += span.worked
        account.saving += span.saving
        account.slow += span.slow
        now = until  # not now + span, which may be rounded to before it
        if now < min(next_stop, found):
            break
        wanted = now < next_stop
        if wanted:
            end = min(now + saving_at_once(plan, policy), next_stop, seconds)
            account.saving += end - now
            now, wanted = end, end < min(next_stop, seconds)
            if now >= seconds:
                break
        if span.on_disk > 0:
            on_disk = begun + span.on_disk * cycle.work
        if cycle.in_memory and span.cycles > 0:
            in_memory = begun + span.cycles * cycle.work
        if wanted and cycle.in_memory:
            in_memory = begun + span.worked
        elif wanted:
            on_disk = begun + span.worked
        survives = max(on_disk, in_memory)
        account.useful -= begun + span.worked - survives
        account.lost += begun + span.worked - survives
        while wanted or (now >= next_stop and now < seconds):  # also if it fails again before it goes on
            account.stops += not wanted
            account.replaced += wanted
            if wanted or rng.random() * rate < plan.host_failures_per_second:
                heapq.heappush(out, now + float(rng.exponential(plan.repair_seconds)))
            wanted = False
            now = _wait_for_nodes(policy, account, now, seconds, out)
            next_stop = now + _drawn(rng, rate)
            now = _restart(plan, account, now, min(next_stop, seconds), from_memory=0 < in_memory >= on_disk)
    return account


def _gone_on(cycle: Cycle, slowness: Slowness, now: float, until: float) -> Span:
    if len(slowness.begins) == 1:
        return steady(cycle, until - now)
    pieces = slowness.pieces(now, until)
    if all(factor == 1.0 for _, factor in pieces):
        return steady(cycle, until - now)
    return slowed(cycle, pieces)


def _drawn(rng: np.random.Generator, rate: float) -> float:
    return float(rng.exponential(1.0 / rate)) if rate > 0.0 else float("inf")


def _wait_for_nodes(policy: Policy, account: Account, now: float, seconds: float, out: list[float]) -> float:
    """Wait until no more nodes are out than there are spares."""
    while out and out[0] <= now:
        heapq.heappop(out)
    if policy.spares is None or len(out) <= policy.spares or now >= seconds:
        return now
    back = min(sorted(out)[len(out) - policy.spares - 1], seconds)
    account.waiting += back - now
    return back


def _restart(plan: LongRun, account: Account, now: float, end: float, *, from_memory: bool) -> float:
    """Start anew and read the state, no longer than until `end`."""
    read = plan.memory_read_seconds if from_memory else plan.read_seconds
    spent = max(0.0, min(plan.restart_seconds + read, end - now))
    account.restarting += spent
    return end if spent == end - now else now + spent
