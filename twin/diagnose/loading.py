"""Ranks that wait for their samples, and runs in which all do."""

from __future__ import annotations

import numpy as np

from twin.diagnose.chance import of_stalls, sure
from twin.diagnose.finding import Finding
from twin.diagnose.observed import Observed
from twin.diagnose.robust import scale

MIN_SHARE = 0.02
"""Of a step: shorter waits are not worth a word."""
MIN_SECONDS = 2e-3
"""Schedulers of operating systems take that long now and then."""
UNUSUAL = 6.0
"""Deviations from the middle of all ranks and steps that make one wait a stall."""
EVERYWHERE_SHARE = 0.05
"""Of a step, at the middle of all ranks: from here on the data is slow, and not one rank."""


def slow_loading(observed: Observed) -> list[Finding]:
    """Find ranks whose loading stalls, in every step or in some; and loading that is slow on all."""
    loading = observed.loading
    if loading is None:
        return []
    step = float(np.median(observed.step_seconds))
    middle = float(np.median(loading))
    spread = max(float(scale(loading.reshape(-1))), 0.1 * middle, MIN_SECONDS / UNUSUAL)
    least = max(MIN_SHARE * step, MIN_SECONDS)
    found = []
    if middle > EVERYWHERE_SHARE * step:
        found.append(
            Finding(
                "loading",
                0.999,
                step / (step - min(middle, 0.9 * step)),
                middle,
                evidence=f"{100 * middle / step:.0f} % of a step on every rank",
            )
        )
    steps, ranks = loading.shape
    over = loading - middle
    stalled = over > max(UNUSUAL * spread, MIN_SECONDS)
    for rank in range(ranks):
        mine = stalled[:, rank]
        mean = float(over[mine, rank].sum()) / steps
        if mean < least:
            continue
        # one stall in many steps may be anybody's hiccup: how often do the others have one?
        elsewhere = int(stalled.sum() - mine.sum())
        share = (elsewhere + 1) / ((ranks - 1) * steps + 2)
        certain = sure(ranks * of_stalls(int(mine.sum()), steps, share))
        host = int(observed.host_of_rank[rank])
        found.append(
            Finding(
                "loading",
                certain,
                step / max(step - mean, 0.1 * step),
                mean,
                (rank,),
                (host,),
                None,
                (observed.host_name(host),),
                f"in {int(mine.sum())} of {steps} steps; others load in {1e3 * middle:.2g} ms",
            )
        )
    return found
