"""Time in which a rank's compute stream stands still for its host: between ops, before the first, after the last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.events import CATEGORIES, Floats
from dashboards.timeline.step import Step


@dataclass(frozen=True)
class Gaps:
    """Gaps of one rank. `event` is the op behind each, of the last gap the op before it; times as in the step."""

    event: NDArray[np.int32]
    start: Floats
    end: Floats


def gaps_of(step: Step, rows: slice) -> Gaps:
    """Return the gaps of the rank whose events lie at `rows`; with its computes and waits they add up to the step."""
    at = np.arange(rows.start, rows.stop, dtype=np.int32)
    at = at[np.isin(step.category[at], [CATEGORIES.index("compute"), CATEGORIES.index("wait")])]
    if not len(at):
        return Gaps(at, np.zeros(0), np.zeros(0))
    at = at[np.lexsort((step.end[at], step.start[at]))]
    start = np.concatenate([[0.0], step.end[at]])
    end = np.concatenate([step.start[at], [step.length]])
    event = np.concatenate([at, at[-1:]])
    there = end > start
    return Gaps(event[there], start[there], end[there])
