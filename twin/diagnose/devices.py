"""Ranks and hosts whose compute takes longer than that of their peers.

All ranks of a 4D grid do the same work, so peers are the yardstick: how the median over steps of one
rank compares with the median over ranks, in units of how much healthy ranks differ. Devices differ by
nature, by 15 % on some machines; where there is a reference, an earlier run on the same ranks, each is
compared with what it was among its peers then, and much smaller changes show.

Where half of the ranks are slow, no median tells who is healthy. But then they fall into two groups with
nothing in between, and the faster one is the yardstick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.diagnose.chance import of_groups, of_peer, sure
from twin.diagnose.finding import CERTAIN, Finding
from twin.diagnose.observed import Floats, Observed
from twin.diagnose.robust import median_error, scale

MIN_RANKS = 4
"""Among fewer it cannot be told who is slow and who is fast."""
MIN_SLOWDOWN = 1.05
"""A rank that is less slow than this is not told, however sure it is: a twentieth of its compute gains little."""
MIN_DEVIATION = 0.002
"""Least deviation between ranks (of logarithms) that is reckoned with; where all agree better, it is by chance."""
SUSPECT = 0.95
"""Certainty that is asked of the least slow rank of a host that is slow as a whole."""
ALIKE = 0.25
"""What slows a host slows all of its ranks alike: none of them less than so much of the slowest (of logarithms), else
it is a slow rank and a neighbour that is a little slow by chance."""
APART = 1.25
"""Two groups of ranks are told apart from this factor between them on,"""
CLEAR = 6.0
"""and from so many deviations of either."""
MIN_RANKS_ONE_STEP = 8
"""Of fewer ranks one step tells no two groups apart."""


def slow_devices(observed: Observed, reference: Observed | None = None) -> list[Finding]:
    """Find slow ranks; where all ranks of a host are slow it is the host."""
    if observed.grid.ranks < MIN_RANKS or not (observed.compute > 0).all():
        return []
    logs = np.log(observed.compute)
    if reference is not None:
        logs = logs - np.log(np.median(reference.compute, axis=0))
    peers = _Peers.of(logs)
    hosts = _by_host(observed)
    named = {ranks: confidence for here in hosts for ranks, confidence in peers.guilty(here, hosts).items()}
    typical = float(np.median(observed.compute[:, peers.healthy]))
    word = "differ" if reference is None else "changed"
    evidence = f"healthy ranks {word} by {100 * peers.spread:.1f} % (standard deviation)"
    found = []
    for ranks, confidence in named.items():
        factor = float(np.exp(np.median(peers.logs[list(ranks)])))
        host = int(observed.host_of_rank[ranks[0]])
        found.append(
            Finding(
                "host" if len(ranks) > 1 else "device",
                confidence,
                factor,
                (factor - 1) * typical,
                ranks,
                (host,),
                None,
                (observed.host_name(host),),
                evidence,
            )
        )
    return found


def _by_host(observed: Observed) -> list[tuple[int, ...]]:
    """Ranks of each host."""
    return [
        tuple(np.flatnonzero(observed.host_of_rank == host).tolist())
        for host in np.unique(observed.host_of_rank).tolist()
    ]


@dataclass(frozen=True)
class _Peers:
    """Ranks held against each other."""

    logs: Floats
    """Logarithm of how long each computes relative to the healthy middle, (ranks,)."""
    spread: float
    """Standard deviation of the healthy ones' logarithms."""
    healthy: NDArray[np.bool_]
    """All ranks, or the faster ones of two groups."""

    @classmethod
    def of(cls, of_step: Floats) -> _Peers:
        """Compare logarithms of times, (steps, ranks)."""
        of_step = of_step - np.median(of_step, axis=1, keepdims=True)
        logs, noise = np.median(of_step, axis=0), median_error(of_step)
        healthy = _faster(logs, noise)
        spread = max(float(scale(logs[healthy])), noise, MIN_DEVIATION)
        return cls(logs - np.median(logs[healthy]), spread, healthy)

    def guilty(self, here: tuple[int, ...], hosts: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        """Name a host's ranks together if all are slow, else those that are; with confidences."""
        whole = self.all_slow(here, hosts)
        if whole >= CERTAIN:
            return {here: whole}
        return {(r,): confidence for r in here if (confidence := self.slow(r)) >= CERTAIN}

    def slow(self, rank: int, among: int = 0) -> float:
        """Return how sure it is that a rank is slow, of so many that might be (all, unless told)."""
        if np.exp(self.logs[rank]) < MIN_SLOWDOWN:
            return 0.0
        parts = max(int(self.healthy.sum()), MIN_RANKS)
        chance = of_peer(float(self.logs[rank]) / self.spread, parts)
        return sure(chance * (among or parts) / parts)

    def all_slow(self, here: tuple[int, ...], hosts: list[tuple[int, ...]]) -> float:
        """Return how sure it is that all ranks of a host are slow.

        Together they are stronger evidence than each alone; but none of them may look healthy, or far less slow
        than another, else it is the others.
        """
        logs = self.logs[list(here)]
        if logs.min() < ALIKE * logs.max():
            return 0.0
        if len(here) < 2 or min(self.slow(rank, len(here) - 1) for rank in here) < SUSPECT:
            return 0.0
        together = float(logs.sum()) / self.spread / len(here) ** 0.5
        return sure(of_groups(together, len(self.logs), tuple(map(len, hosts))))


def _faster(logs: Floats, noise: float) -> NDArray[np.bool_]:
    """Which ranks are healthy: all, unless they fall into two groups, far apart, the slower a third to half of all."""
    order = np.argsort(logs, kind="stable")
    gaps = np.diff(logs[order])
    at = int(np.argmax(gaps)) + 1  # so many are faster
    fast, slow = logs[order[:at]], logs[order[at:]]
    everybody = np.ones(len(logs), dtype=bool)
    few = len(logs) < MIN_RANKS_ONE_STEP and not noise  # of few ranks in one step, two may be alike by chance
    if few or len(slow) < 2 or not len(logs) <= 3 * len(slow) <= 1.5 * len(logs):
        return everybody  # few slow ones do not move a median, and most ranks are not slow
    within = max(float(fast.std()), float(slow.std()), noise, MIN_DEVIATION)
    if gaps[at - 1] < np.log(APART) or gaps[at - 1] < CLEAR * within:
        return everybody
    return np.isin(np.arange(len(logs)), order[:at])
