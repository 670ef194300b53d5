"""Links of hosts that are slower than those of other hosts.

Two witnesses. The *groups*: a slow link makes every collective slow that crosses it, on every axis, and
no other; the link that explains most of what was seen, axes taken together, is the culprit. With few hosts
all groups cross all links, and the groups cannot tell. The *probe* can: hosts that sent to each
other in pairs when the trace was written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from twin.description.grid import Axis
from twin.diagnose.chance import of_split, sure
from twin.diagnose.expected import Expected
from twin.diagnose.finding import CERTAIN, Finding
from twin.diagnose.observed import Floats, Ints, Observed, groups_of_ranks
from twin.diagnose.probe import Probe
from twin.diagnose.robust import OF_MEDIAN, confidence, scale

MIN_SLOWDOWN = 1.1
"""A link that is less slow is not told: twice what is asked of devices, for collectives wait for others too."""
PROBE_SLOWDOWN = 1.25
"""Single messages vary more than the sum of a step's collectives."""
MIN_DEVIATION = 0.01
"""Least deviation between groups (of logarithms) that is reckoned with; where all agree better, it is by chance."""
LOOKED_AT = 64
"""Units with the slowest groups; the culprit is among them."""
AS_GOOD = 0.98
"""Share of the best unit's explanation from which another unit cannot be told from it."""
MAX_SUSPECTS = 4
"""With more hosts than this, nobody is named: it would send people to healthy ones."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class HostLink:
    """A link that may be slow: of a whole host, or of one of its NICs."""

    host: int
    ranks: tuple[int, ...]
    whole_host: bool


@dataclass(frozen=True)
class _Axis:
    """Groups of one axis that cross hosts, and what can be compared of them."""

    axis: Axis
    group_of_rank: Ints
    values: Floats
    """Log of time over expected, (groups,)."""
    usable: Flags
    """(groups,)"""
    seconds: float
    """Typical of a group in a step."""


def units_of(observed: Observed, nic_of_rank: Ints) -> list[HostLink]:
    """List hosts, and their NICs where they have several."""
    units = []
    for host in np.unique(observed.host_of_rank).tolist():
        here = np.flatnonzero(observed.host_of_rank == host)
        units.append(HostLink(host, tuple(here.tolist()), True))
        nics = np.unique(nic_of_rank[here])
        if len(nics) > 1:
            units += [HostLink(host, tuple(here[nic_of_rank[here] == nic].tolist()), False) for nic in nics]
    return units


def slow_links(
    observed: Observed, expected: Expected, nic_of_rank: Ints, probe: Probe | None, without: Collection[int]
) -> list[Finding]:
    """Find the slow link, if there is one; ranks in `without` are known to be slow and tell nothing.

    Returns one finding at most, of several hosts where the evidence cannot tell them apart.
    """
    if len(np.unique(observed.host_of_rank)) < 2:
        return []
    if probe is not None and (found := _by_probe(observed, probe, without)):
        return found
    return _by_groups(observed, expected, units_of(observed, nic_of_rank), without)


def _by_groups(
    observed: Observed, expected: Expected, units: list[HostLink], without: Collection[int]
) -> list[Finding]:
    known = [
        each
        for axis in observed.axes
        if axis in expected.transfer
        if (each := _axis(observed, expected, axis, without)) is not None and each.usable.sum() > 2
    ]
    if not known:
        return []
    excess = np.max([_excess(each, units) for each in known], axis=0)
    looked_at = np.argsort(-excess, kind="stable")[:LOOKED_AT].tolist()
    gains = {index: sum(_gain(each, units[index]) for each in known) for index in looked_at}
    best = max(gains, key=lambda index: (gains[index], -index))
    if gains[best] <= 0:
        return []
    suspects = [units[i] for i in sorted(gains) if gains[i] >= AS_GOOD * gains[best]]
    hosts = tuple(sorted({unit.host for unit in suspects}))
    if len(hosts) > MAX_SUSPECTS:
        return []
    told = [found for each in known if (found := _told(each, units[best], len(units) * len(known)))]
    if not told:
        return []
    factor, certain, seconds = max(told, key=lambda one: (one[1], one[0]))
    if certain < CERTAIN or factor < MIN_SLOWDOWN:
        return []
    narrow = len(hosts) == 1 and not units[best].whole_host
    return [
        Finding(
            "link",
            certain,
            factor,
            seconds,
            units[best].ranks if narrow else (),
            hosts,
            None,
            tuple(map(observed.host_name, hosts)),
            "collectives that cross it, against those that do not",
        )
    ]


def _excess(axis: _Axis, units: Sequence[HostLink]) -> Floats:
    """Return how far the median of each unit's groups lies above that of all: (units,)."""
    group_of_rank, values = axis.group_of_rank.tolist(), axis.values.tolist()
    usual = float(np.median(axis.values[axis.usable]))
    # of handfuls, thousands of times: Python's median is six times as fast as numpy's
    return np.array([median(values[g] for g in {group_of_rank[r] for r in unit.ranks}) - usual for unit in units])


def _axis(observed: Observed, expected: Expected, axis: Axis, without: Collection[int]) -> _Axis | None:
    group = groups_of_ranks(observed.grid, axis)
    should = expected.transfer[axis]
    if not (should > 0).all():
        return None
    typical = np.median(observed.transfer[axis], axis=0)
    if not (typical > 0).all():
        return None
    log = np.log(typical / should)
    count = int(group.max()) + 1
    order = np.argsort(group, kind="stable").reshape(count, -1)
    hosts = observed.host_of_rank[order]
    crossing = (hosts != hosts[:, :1]).any(axis=1)
    clean = ~np.isin(order, np.array(list(without), dtype=np.int64)).any(axis=1)
    return _Axis(axis, group, np.median(log[order], axis=1), crossing & clean, float(np.median(typical)))


def _split(each: _Axis, unit: HostLink) -> tuple[Floats, Floats]:
    """Values of the groups that cross the unit's link, and of those that do not."""
    inside = np.zeros(len(each.values), dtype=bool)
    inside[each.group_of_rank[list(unit.ranks)]] = True
    return each.values[inside & each.usable], each.values[~inside & each.usable]


def _gain(each: _Axis, unit: HostLink) -> float:
    """Return how much of what was seen on an axis the unit explains, in typical deviations."""
    inside, outside = _split(each, unit)
    if not len(inside) or len(outside) < 2 or np.median(inside) <= np.median(outside):
        return 0.0
    spread = max(float(scale(outside)), MIN_DEVIATION)
    everything = each.values[each.usable]
    return (_absolute(everything) - _absolute(inside) - _absolute(outside)) / spread


def _told(each: _Axis, unit: HostLink, hypotheses: int) -> tuple[float, float, float] | None:
    """Slowdown, confidence and seconds by one axis; None if it does not tell."""
    inside, outside = _split(each, unit)
    if not len(inside) or len(outside) < 2:
        return None
    spread = max(float(scale(outside)), MIN_DEVIATION)
    more = float(np.median(inside) - np.median(outside))
    chance = hypotheses * of_split(more / spread, len(outside))
    return float(np.exp(more)), sure(chance), float(np.expm1(more)) * each.seconds


def _absolute(values: Floats) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _by_probe(observed: Observed, probe: Probe, without: Collection[int]) -> list[Finding]:
    pairs = probe.pairs(set(observed.host_of_rank[list(without)].tolist()) if without else ())
    if pairs is None:
        return []
    sender, receiver, seconds = pairs
    log = np.log(seconds)
    hosts = np.unique(np.concatenate([sender, receiver]))
    found: tuple[float, int, Floats, Floats] | None = None
    for host in hosts.tolist():
        inside = (sender == host) | (receiver == host)
        mine, others = log[inside], log[~inside]
        if len(others) < 2 or np.median(mine) <= np.median(others):
            continue
        gain = _absolute(log) - _absolute(mine) - _absolute(others)
        if found is None or gain > found[0]:
            found = gain, host, mine, others
    if found is None:
        return []
    _, host, mine, others = found
    more = float(np.median(mine) - np.median(others))
    deviation = max(float(np.median([scale(mine), scale(others)])), 2 * MIN_DEVIATION)
    error = deviation * OF_MEDIAN * float(np.sqrt(1 / len(mine) + 1 / len(others)))
    certain = confidence(more / error, len(log) - 2, len(hosts))
    factor = float(np.exp(more))
    if certain < CERTAIN or factor < PROBE_SLOWDOWN:
        return []
    crossing = max((float(np.median(observed.transfer[axis])) for axis in observed.axes), default=0.0)
    evidence = f"messages of {probe.bytes:,} bytes between hosts, after the traced steps"
    return [
        Finding(
            "link",
            certain,
            factor,
            (1 - 1 / factor) * crossing,
            (),
            (host,),
            None,
            (observed.host_name(host),),
            evidence,
        )
    ]
