"""What a run repeats between stops, and how far it gets in a span of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from twin.goodput.long_run import LongRun, Mode


@dataclass(frozen=True)
class Policy:
    """The way state is saved."""

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
    """True if each cycle leaves a copy in a neighbour's memory."""

    @property
    def seconds(self) -> float:
        """Length of one cycle."""
        return self.work + self.still


def cycle_of(plan: LongRun, policy: Policy) -> Cycle:
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
    per_disk = max(1, round(policy.disk_interval_seconds / interval), ceil(plan.write_seconds / (interval + still)))
    return Cycle(interval, still, per_disk, plan.write_seconds, in_memory=True)


def saving_at_once(plan: LongRun, policy: Policy) -> float:
    """Seconds from the last step to a state that survives, before a stop that is wanted."""
    if policy.mode == "sync":
        return plan.write_seconds
    second = plan.write_seconds if policy.mode == "async" else plan.neighbour_seconds
    return plan.copy_seconds + second


@dataclass(frozen=True)
class Span:
    """Progress of a run between two stops; seconds."""

    worked: float
    """In seconds of healthy steps."""
    saving: float
    slow: float
    """What steps took longer than healthy ones."""
    cycles: int
    """That were finished."""
    on_disk: int
    """Cycles whose state is on the file system at the end."""


def steady(cycle: Cycle, span: float) -> Span:
    """Go on for so many seconds with healthy steps."""
    cycles = floor(span / cycle.seconds)
    rest = span - cycles * cycle.seconds
    worked = cycles * cycle.work + min(rest, cycle.work)
    written = floor((span - cycle.lag) / (cycle.per_disk * cycle.seconds))
    return Span(worked, span - worked, 0.0, cycles, max(0, written) * cycle.per_disk)


def slowed(cycle: Cycle, pieces: Sequence[tuple[float, float]]) -> Span:
    """Go on through pieces of (seconds, how many times longer a step takes).

    Only work takes longer: a checkpoint is copied and written at its usual rate. A checkpoint that lasts
    longer than the interval makes steps wait as long as if they were healthy, which is a little too long.
    """
    worked = saving = slow = place = 0.0  # place: in the cycle, in seconds of a healthy one
    cycles = in_time = 0
    left = sum(seconds for seconds, _ in pieces)
    for seconds, factor in pieces:
        # what is on the file system at the end was finished `lag` seconds before
        early = min(seconds, left - cycle.lag)
        if early > 0.0:
            in_time = cycles + int(_moved(cycle, place, early, factor)[0])
        finished, after = _moved(cycle, place, seconds, factor)
        work = finished * cycle.work + min(after, cycle.work) - min(place, cycle.work)
        still = finished * cycle.still + max(0.0, after - cycle.work) - max(0.0, place - cycle.work)
        worked, saving = worked + work, saving + still
        slow += seconds - work - still
        cycles, place, left = cycles + int(finished), after, left - seconds
    return Span(worked, saving, slow, cycles, in_time // cycle.per_disk * cycle.per_disk)


def _moved(cycle: Cycle, place: float, seconds: float, factor: float) -> tuple[float, float]:
    """Cycles finished in a piece that begins at a place of a cycle, and the place where it ends."""
    work = cycle.work * factor
    at = place * factor if place < cycle.work else work + place - cycle.work
    finished, rest = divmod(at + seconds, work + cycle.still)
    return finished, rest / factor if rest < work else cycle.work + rest - work
