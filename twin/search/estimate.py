"""How large a search is, before it begins: its candidates, and how long a few of them take here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twin.description.job import Job
from twin.engine.crew import Workers, size_of
from twin.search.candidates import candidates, unsettled
from twin.search.entries import figures_of
from twin.strategies import strategy_of

SAMPLES = 5
"""Candidates that are timed, spread evenly over all by their micro-steps."""


@dataclass(frozen=True)
class Estimate:
    """The size of one search."""

    candidates: int
    feasible: int
    seconds: float
    """Of one process, if every feasible candidate is simulated: a mean of those that were timed, times their number."""


def estimate(
    job: Job,
    *,
    over: frozenset[str] = frozenset(),
    only: Mapping[str, frozenset[int]] | None = None,
    makes_room: bool = False,
) -> Estimate:
    """Count the candidates of a search and time some of them.

    `makes_room`: as a search over strategies does, with what makes room too where nothing fits without.
    """
    base = unsettled(job)
    found = candidates(base, over, only)
    if makes_room and not any(one.feasible for one in found):
        found += candidates(base, over | frozenset(strategy_of(job).makes_room), only)
    ready = sorted((one for one in found if one.feasible), key=lambda one: one.micro_steps or 0)
    count = min(SAMPLES, len(ready))
    chosen = [ready[(2 * i + 1) * len(ready) // (2 * count)] for i in range(count)]
    begin = time.perf_counter()
    figures_of(base, chosen)
    spent = time.perf_counter() - begin
    return Estimate(len(found), len(ready), spent / count * len(ready) if count else 0.0)


def words(estimates: Sequence[Estimate], workers: Workers, *, pruned: bool) -> str:
    """Say how large searches are together, and how long they take with so many workers."""
    many, able = (sum(getattr(one, key) for one in estimates) for key in ("candidates", "feasible"))
    seconds, size = sum(one.seconds for one in estimates), size_of(workers)
    less = "; less where floors show that candidates cannot be the fastest" if pruned else ""
    return (
        f"{many:,} candidates, {able:,} feasible: about {_time(seconds / size)} with {size:,} worker{'s'[: size > 1]}, "
        f"by the time of {SAMPLES} of each search on this machine{less}"
    )


def estimate_json(estimates: Sequence[Estimate], workers: Workers) -> dict[str, int | float]:
    """Return what `fourfold search --dry-run --json` prints."""
    size, seconds = size_of(workers), sum(one.seconds for one in estimates)
    return {
        "candidates": sum(one.candidates for one in estimates),
        "feasible": sum(one.feasible for one in estimates),
        "workers": size,
        "worker_seconds": seconds,
        "estimated_seconds": seconds / size,
    }


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
