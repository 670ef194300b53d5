"""Ranks that compute longer because collectives beside it last longer.

A slow link makes all collectives longer that cross it, and what computes beside a collective is slowed by it. So
ranks far away from the link, healthy ones, compute longer than their peers. How much longer at most is known:
by the interference, over all the time that their collectives take more.
"""

from __future__ import annotations

import numpy as np

from twin.description.parameter import Parameter
from twin.diagnose.expected import Expected
from twin.diagnose.finding import Finding
from twin.diagnose.observed import Floats, Observed
from twin.diagnose.robust import scale
from twin.engine.interval import most_slowed

LONGER = 1.1
"""Collectives count that take so many times as long as those of most ranks,"""
UNUSUAL = 6.0
"""and are so many deviations from them: others are longer by chance."""


def interference_of(slowdown: Parameter) -> float:
    """Return by which share a collective slows compute at most: of an assumed one, what was seen anywhere."""
    return most_slowed(float(slowdown)) if slowdown.kind == "assumed" else float(slowdown)


def allowance(observed: Observed, usual: Expected, interference: float) -> Floats:
    """Return by how many seconds a step long collectives may lengthen compute at most, (ranks,)."""
    more = np.zeros(observed.grid.ranks)
    for axis in observed.axes:
        should = usual.transfer.get(axis)
        took = np.median(observed.transfer[axis], axis=0)
        if should is None or not (should > 0).all() or not (took > 0).all():
            continue
        logs = np.log(took / should)
        over = logs - np.median(logs)
        long = over > max(np.log(LONGER), UNUSUAL * float(scale(logs)))
        more += np.where(long, -took * np.expm1(-over), 0.0)
    return np.asarray(more * interference / (1.0 + interference))


def is_explained(device: Finding, allowed: Floats, interference: float) -> bool:
    """Tell whether long collectives may be all that makes a device, or each of a host's, slow."""
    by_all = 1.0 + interference >= device.slowdown
    return by_all and device.seconds <= float(allowed[list(device.ranks)].min())
