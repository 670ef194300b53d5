"""Agreement of the clocks of a run's ranks, by what the manifest says and by what events show.

* A collective cannot end before its last member came. Where the clocks said so, the ends were moved
  when the ranks were put together, and lie behind the waits for them: that betrays by how much.
* No member starts before the last one came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from twin.compare.steps import Nanoseconds, Steps, Times
from twin.description.grid import Axes
from twin.description.problems import fail
from twin.trace.table import MAX_NANOSECONDS

MAX_DISAGREEMENT = 0.1
"""Of a step: where clocks are further apart than this, nothing between ranks means anything."""


@dataclass(frozen=True)
class Clock:
    """The way clocks were aligned."""

    method: str
    uncertainty_ns: int
    """The larger of what the manifest says and what the compared step shows."""
    said_ns: int
    """What the manifest says."""


def said_clock(manifest: Mapping[str, Any], origin: str) -> Clock:
    """Read what the manifest says."""
    clock = manifest.get("clock")
    if not isinstance(clock, dict):
        raise fail(origin, "its manifest does not say how clocks were aligned (clock: is missing)")
    said = clock.get("uncertainty_ns")
    if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said <= MAX_NANOSECONDS:
        raise fail(origin, "clock.uncertainty_ns is no whole number of nanoseconds", said)
    return Clock(str(clock.get("method")), said, said)


def disagreement_ns(steps: Steps, times: Times) -> int:
    """By how much collectives end behind the waits for them, at most."""
    waits = steps.columns("wait")
    if not len(waits):
        return 0
    behind = times.end[:, steps.target[waits]] - times.end[:, waits]
    return max(0, int(behind.max()))


def too_early_ns(steps: Steps, times: Times, grid: Axes) -> int:
    """By how much members of collectives start before the last one came, at most."""
    most = 0
    for axis in grid.axes:
        columns = np.array([i for i, op in enumerate(steps.ops) if op.kind == "collective" and op.axis == axis])
        if len(columns):
            inner = grid.inner(axis)
            group = steps.ranks // (inner * grid.size(axis)) * inner + steps.ranks % inner
            last = _last_arrival(times.arrival[:, columns], group)
            most = max(most, int((last - times.start[:, columns]).max()))
    return most


def _last_arrival(arrival: Nanoseconds, group: Nanoseconds) -> Nanoseconds:
    order = np.argsort(group, kind="stable")
    _, first, place = np.unique(group[order], return_index=True, return_inverse=True)
    last = np.maximum.reduceat(arrival[order], first, axis=0)
    back = np.empty_like(order)
    back[order] = place
    return np.asarray(last[back], dtype=np.int64)
