"""Ranks and hosts whose compute takes longer than that of their peers.

All ranks of a 4D grid do the same work, so peers are the yardstick: how the median over steps of one
rank compares with the median over ranks, in units of how much healthy ranks differ. Devices differ by
nature, by 15 % on some machines; where there is a reference, an earlier run on the same ranks, each is
compared with what it was among its peers then, and much smaller changes show.
"""

from __future__ import annotations

import numpy as np

from twin.study.diagnose.finding import CERTAIN, Finding
from twin.study.diagnose.observed import Floats, Observed
from twin.study.diagnose.robust import confidence, median_error, scale

LEAST_RANKS = 4
"""Among fewer it cannot be told who is slow and who is fast."""
LEAST_SLOWDOWN = 1.05
LEAST_DEVIATION = 0.002


def slow_devices(observed: Observed, reference: Observed | None = None) -> list[Finding]:
    """Find slow ranks; where all ranks of a host are slow it is the host."""
    if observed.grid.ranks < LEAST_RANKS:
        return []
    middle = np.median(observed.compute, axis=1, keepdims=True)
    if not (middle > 0).all():
        return []
    ratio = observed.compute / middle
    if reference is not None:
        ratio = ratio / among_peers(reference)
    of_rank = np.median(ratio, axis=0)
    spread = max(float(scale(of_rank)), median_error(ratio), LEAST_DEVIATION)
    ranks, freedom = len(of_rank), len(of_rank) - 1
    scores = (of_rank - np.median(of_rank)) / spread
    slow = {}
    for rank in np.flatnonzero(of_rank >= LEAST_SLOWDOWN).tolist():
        sure = confidence(float(scores[rank]), freedom, ranks)
        if sure >= CERTAIN:
            slow[rank] = sure
    typical = float(np.median(middle))
    found = []
    for host in np.unique(observed.host_of_rank[list(slow)] if slow else []).tolist():
        here = np.flatnonzero(observed.host_of_rank == host).tolist()
        guilty = [rank for rank in here if rank in slow]
        name = (observed.host_name(host),)
        evidence = f"healthy ranks {'changed' if reference else 'differ'} by {100 * spread:.1f} % (standard deviation)"
        if len(here) > 1 and len(guilty) == len(here):
            factor = float(np.median(of_rank[here]))
            sure = min(slow[rank] for rank in here)
            found.append(Finding("host", sure, factor, (factor - 1) * typical, tuple(here), (host,), None, name,
                                 evidence))  # fmt: skip
            continue
        for rank in guilty:
            factor = float(of_rank[rank])
            found.append(Finding("device", slow[rank], factor, (factor - 1) * typical, (rank,), (host,), None, name,
                                 evidence))  # fmt: skip
    return found


def among_peers(observed: Observed) -> Floats:
    """How long each rank computed relative to the median rank, (ranks,)."""
    ratio = observed.compute / np.median(observed.compute, axis=1, keepdims=True)
    return np.asarray(np.median(ratio, axis=0))
