"""Ranks that wait for their samples, and runs in which all do."""

from __future__ import annotations

import numpy as np

from twin.study.diagnose.finding import Finding
from twin.study.diagnose.observed import Observed
from twin.study.diagnose.robust import confidence, scale

LEAST_SHARE = 0.02
"""Of a step: shorter waits are not worth a word."""
LEAST_SECONDS = 2e-3
"""Schedulers of operating systems take that long now and then."""
UNUSUAL = 6.0
"""Deviations from the middle of all ranks and steps that make one wait a stall."""
EVERYWHERE_SHARE = 0.05


def slow_loading(observed: Observed) -> list[Finding]:
    """Find ranks whose loading stalls, in every step or in some; and loading that is slow on all."""
    loading = observed.loading
    if loading is None:
        return []
    step = float(np.median(observed.step_seconds))
    middle = float(np.median(loading))
    spread = max(float(scale(loading.reshape(-1))), 0.1 * middle, LEAST_SECONDS / UNUSUAL)
    least = max(LEAST_SHARE * step, LEAST_SECONDS)
    found = []
    if middle > EVERYWHERE_SHARE * step:
        found.append(Finding("loading", 0.999, step / (step - min(middle, 0.9 * step)), middle,
                             evidence=f"{100 * middle / step:.0f} % of a step on every rank"))  # fmt: skip
    steps, ranks = loading.shape
    for rank in range(ranks):
        over = loading[:, rank] - middle
        stalls = over > max(UNUSUAL * spread, LEAST_SECONDS)
        mean = float(over[stalls].sum()) / steps
        if mean < least:
            continue
        # one stall in many steps may be anybody's hiccup: how sure it is grows with how often it comes
        score = float(np.sqrt(stalls.sum())) * float(np.median(over[stalls])) / spread
        often = 1.0 if 2 * int(stalls.sum()) >= steps else 0.9
        host = int(observed.host_of_rank[rank])
        found.append(Finding(
            "loading", often * confidence(score, steps * ranks - 1, ranks), step / max(step - mean, 0.1 * step), mean,
            (rank,), (host,), None, (observed.host_name(host),),
            f"in {int(stalls.sum())} of {steps} steps; others load in {1e3 * middle:.2g} ms",
        ))  # fmt: skip
    return found
