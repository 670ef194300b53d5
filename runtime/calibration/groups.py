"""Collectives over every axis layout, alone and with all groups of the layout at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import torch

from runtime.calibration.core_time import PRODUCT, CoreTime, core_time
from runtime.calibration.gemms import product
from runtime.calibration.layouts import KINDS, Axis, layouts
from runtime.calibration.listening import new_listener
from runtime.calibration.sample import spread, synchronize
from runtime.calibration.team import Team
from runtime.tracing.listener import Note
from twin.description.library import CollectiveKind

SIZES = (1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)
"""Bytes: of the output of an all-gather, the input of a reduce-scatter, the buffer of an all-reduce."""
WIDE_SIZES = (32 << 20, 128 << 20)
"""On GPUs as well."""
MIN_REPEATS, MAX_REPEATS = 3, 15
MAX_SHARE = 12.0
"""A size is left out if the least repeats would take so many times its share of the budget."""
SLOW_SECONDS = 0.02
"""Repeats that take longer are agreed upon one by one."""
SLOW_COUNTED = 2
"""Of those, repeats whose processor time is counted."""
PAUSE_SECONDS = 0.003
"""Between repeats, beyond what one is expected to take."""


@dataclass(frozen=True)
class Times:
    """One collective on one rank, in nanoseconds of rank 0's clock."""

    arrived: int
    ended: int
    """The transfer; on gloo what is received is still to be summed."""
    delivered: int
    """The result is there."""


def measure_groups(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time collectives; entries on rank 0.

    `seconds` is from the arrival of a group's last member to the last delivery, `transfer_seconds` to the last end
    of the transfer; the median over repeats of the mean over groups at work. `busy_core_seconds` is what one takes
    of a CPU's core among products, all ranks at work, as in a step; None where some are not.
    """
    dtype = torch.float32 if team.device.type == "cpu" else torch.bfloat16
    sizes = SIZES if team.device.type == "cpu" else (*SIZES, *WIDE_SIZES)
    wanted = layouts(team.ranks)
    series = sum(min(2, layout.groups(team.ranks)) for layout in wanted) * len(KINDS)
    mine: list[tuple[dict[str, Any], int, list[Times], CoreTime | None]] = []
    run = product(PRODUCT, dtype, team.device)
    for layout in wanted:
        axis = Axis(team, layout)
        for at_once in sorted({1, layout.groups(team.ranks)}):
            for kind in KINDS:
                each, last = seconds / (series * len(sizes)), 0.0
                for size in sizes:
                    if 4 * last * MIN_REPEATS > MAX_SHARE * each:
                        break
                    buffer = axis.buffer(kind, size, dtype)
                    working = axis.number < at_once
                    times, last = _repeats(team, axis, kind, buffer, each, working=working)
                    core = None
                    if team.device.type == "cpu" and at_once * layout.size == team.ranks:
                        counted = SLOW_COUNTED if last > SLOW_SECONDS else len(times)
                        core = core_time(axis, kind, buffer, run, 1, counted, beside=False)
                    facts = {
                        "kind": kind,
                        "bytes": size,
                        "inner": layout.inner,
                        "size": layout.size,
                        "groups": at_once,
                        "element_bytes": dtype.itemsize,
                    }
                    mine.append((facts, axis.number, times, core))
    everyone = team.gather(mine)
    return [] if everyone is None else [_entry(same) for same in zip(*everyone, strict=True)]


def _repeats(
    team: Team, axis: Axis, kind: CollectiveKind, buffer: torch.Tensor, seconds: float, *, working: bool
) -> tuple[list[Times], float]:
    """Times of as many repeats as there is time for, and roughly how long one takes, on every rank."""
    team.start_together()
    trial = [_once(team, axis, kind, buffer) for _ in range(2)] if working else []
    # rank 0 is always in the group that works
    expected = (trial[-1].delivered - trial[-1].arrived) / 1e9 if trial else 0.0
    expected = team.told([expected])[0]
    repeats = round(min(MAX_REPEATS, max(MIN_REPEATS, seconds / (2 * expected + PAUSE_SECONDS))))
    times = []
    for moment in _moments(team, repeats, expected):
        if working:
            team.sleep_until(moment)
            times.append(_once(team, axis, kind, buffer))
    return times, expected


def _moments(team: Team, repeats: int, expected: float) -> Iterator[int]:
    """When repeats begin: slow ones when rank 0 is done with the one before, quick ones by the clock."""
    if expected > SLOW_SECONDS:
        yield from (team.moment() for _ in range(repeats))
    else:
        begin, period = team.moment(), round((2 * expected + PAUSE_SECONDS) * 1e9)
        yield from (begin + number * period for number in range(repeats))


def _once(team: Team, axis: Axis, kind: CollectiveKind, buffer: torch.Tensor) -> Times:
    listener = new_listener(team.device)
    axis.start(kind, buffer, listener).wait()
    synchronize(team.device)
    return times_of(listener.finish(), team.clock.offset_ns)


def times_of(notes: Sequence[Note], offset_ns: int) -> Times:
    """What was heard of one collective."""
    collective = next(note for note in notes if note.kind == "collective")
    wait = next(note for note in notes if note.kind == "wait")
    return Times(
        arrived=collective.begin_ns + offset_ns, ended=collective.end_ns + offset_ns, delivered=wait.end_ns + offset_ns
    )


def _entry(same: Sequence[tuple[dict[str, Any], int, list[Times], CoreTime | None]]) -> dict[str, Any]:
    """One collective as all its ranks saw it."""
    facts = same[0][0]
    members: dict[int, list[list[Times]]] = {}
    for _, number, times, _ in same:
        if times:
            members.setdefault(number, []).append(times)
    delivered, transfer, skew = [], [], []
    for repeat in range(len(same[0][2])):
        groups = [[times[repeat] for times in group] for group in members.values()]
        last = [max(t.arrived for t in group) for group in groups]
        delivered.append(mean(max(t.delivered for t in g) - a for g, a in zip(groups, last, strict=True)))
        transfer.append(mean(max(t.ended for t in g) - a for g, a in zip(groups, last, strict=True)))
        skew.append(mean(a - min(t.arrived for t in g) for g, a in zip(groups, last, strict=True)))
    cores = [core.collective_seconds for _, _, _, core in same if core is not None]
    return {
        **facts,
        "seconds": median(delivered) / 1e9,
        "spread": spread(delivered),
        "transfer_seconds": median(transfer) / 1e9,
        "skew_seconds": median(skew) / 1e9,
        "busy_core_seconds": mean(cores) if cores else None,
        "repeats": len(delivered),
    }
