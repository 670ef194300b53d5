"""Device work timed on some ranks while the others rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from statistics import mean, median

from runtime.calibration.sample import Clock, Sample, chunk_of, repeat, spread
from runtime.calibration.team import Team


def timed_on(
    team: Team, busy: Collection[int], run: Callable[[], object], seconds: float, clock: Clock = time.thread_time
) -> Sample | None:
    """Time work on the ranks `busy` at once, for so many seconds; None on ranks that rest.

    All begin at the same moment. On CPUs it is time of the core, unless another clock is given.
    Every rank must call it.
    """
    working = team.rank in busy
    chunk = chunk_of(run, team.device) if working else 1
    team.start_together()
    return repeat(run, chunk, seconds, team.device, clock) if working else None


def joined(samples: Collection[Sample | None]) -> Sample | None:
    """What several ranks found, as one.

    Ranks that worked at once may have shared cores and interrupted each other: what each repetition took
    is total time over repetitions, and the spread is that over ranks. A single rank's is its own.
    """
    found = [sample for sample in samples if sample is not None]
    if len(found) < 2:
        return found[0] if found else None
    times = [sample.mean_seconds for sample in found]
    return Sample(median(times), mean(times), spread(times), sum(s.repeats for s in found))


def busy_sets(team: Team) -> list[range]:
    """Rank 0 alone, and all ranks."""
    return [range(1), range(team.ranks)] if team.ranks > 1 else [range(1)]
