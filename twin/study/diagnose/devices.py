"""Ranks and hosts whose compute takes longer than that of their peers.

All ranks of a 4D grid do the same work, so peers are the yardstick: how the median over steps of one
rank compares with the median over ranks, in units of how much healthy ranks differ. Devices differ by
nature, by 15 % on some machines; where there is a reference, an earlier run on the same ranks, each is
compared with what it was among its peers then, and much smaller changes show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twin.study.diagnose.finding import CERTAIN, Finding
from twin.study.diagnose.observed import Floats, Observed
from twin.study.diagnose.robust import confidence, median_error, scale

LEAST_RANKS = 4
"""Among fewer it cannot be told who is slow and who is fast."""
LEAST_SLOWDOWN = 1.05
LEAST_DEVIATION = 0.002
SUSPECT = 0.95
"""How sure it must be of the least slow rank of a host that is slow as a whole."""


def slow_devices(observed: Observed, reference: Observed | None = None) -> list[Finding]:
    """Find slow ranks; where all ranks of a host are slow it is the host."""
    peers = _Peers.of(observed, reference)
    if peers is None:
        return []
    found = []
    for host in np.unique(observed.host_of_rank).tolist():
        here = np.flatnonzero(observed.host_of_rank == host).tolist()
        guilty: dict[tuple[int, ...], float] = {}
        if (sure := peers.all_slow(here, hosts=int(observed.host_of_rank.max()) + 1)) >= CERTAIN:
            guilty[tuple(here)] = sure
        else:
            guilty = {(r,): sure for r in here if (sure := peers.slow(r)) >= CERTAIN}
        for ranks, sure in guilty.items():
            factor = float(np.median(peers.ratio[list(ranks)]))
            found.append(Finding(
                "host" if len(ranks) > 1 else "device", sure, factor, (factor - 1) * peers.typical_seconds, ranks,
                (host,), None, (observed.host_name(host),),
                f"healthy ranks {'changed' if reference else 'differ'} by {100 * peers.spread:.1f} % "
                "(standard deviation)",
            ))  # fmt: skip
    return found


@dataclass(frozen=True)
class _Peers:
    """How ranks compare."""

    ratio: Floats
    """Of each rank to the median one, (ranks,)."""
    scores: Floats
    """The same above the median, in standard deviations of healthy ranks."""
    spread: float
    typical_seconds: float

    @classmethod
    def of(cls, observed: Observed, reference: Observed | None) -> _Peers | None:
        """Compare; None if ranks are too few, or compute nothing."""
        middle = np.median(observed.compute, axis=1, keepdims=True)
        if observed.grid.ranks < LEAST_RANKS or not (middle > 0).all():
            return None
        of_step = observed.compute / middle
        if reference is not None:
            of_step = of_step / among_peers(reference)
        ratio = np.median(of_step, axis=0)
        spread = max(float(scale(ratio)), median_error(of_step), LEAST_DEVIATION)
        return cls(ratio, (ratio - np.median(ratio)) / spread, spread, float(np.median(middle)))

    def slow(self, rank: int, hypotheses: int = 0) -> float:
        """How sure it is that a rank is slow; 0 if the difference is too small to matter."""
        if self.ratio[rank] < LEAST_SLOWDOWN:
            return 0.0
        count = len(self.scores)
        return confidence(float(self.scores[rank]), count - 1, hypotheses or count)

    def all_slow(self, ranks: list[int], hosts: int) -> float:
        """How sure it is that all ranks of one host are slow.

        Together they are stronger evidence than each alone; but none of them may look healthy, else it is
        the others.
        """
        if len(ranks) < 2 or min(self.slow(rank, len(ranks) - 1) for rank in ranks) < SUSPECT:
            return 0.0
        together = float(self.scores[ranks].sum()) / len(ranks) ** 0.5
        return confidence(together, len(self.scores) - 1, hosts)


def among_peers(observed: Observed) -> Floats:
    """How long each rank computed relative to the median rank, (ranks,)."""
    ratio = observed.compute / np.median(observed.compute, axis=1, keepdims=True)
    return np.asarray(np.median(ratio, axis=0))
