"""`simulate --engine ranks`: every rank of a job on its own, for one seed or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twin.description.job import Job
from twin.engine.all_ranks import AllRanks, simulate_ranks
from twin.engine.report import Report, report_all_ranks
from twin.engine.seeds import spread_of
from twin.engine.variation import drawn_slowness
from twin.study.parallel import in_parallel

SHOWN_DEVICES = 4
"""Ranks whose events are kept unless others are asked for: rank 0, and of all devices the
slowest, the median and the fastest."""


@dataclass(frozen=True)
class EveryRank:
    """The step of the job's own seed, and the figures of all seeds (the own one first)."""

    simulation: AllRanks
    reports: tuple[Report, ...]

    @property
    def figures(self) -> Report:
        """Figures of the job's own seed."""
        return self.reports[0]

    def distribution(self) -> dict[str, Any]:
        """What JSON says about the seeds; empty for one."""
        if len(self.reports) == 1:
            return {}
        return {"seeds": {"count": len(self.reports), **spread_of(self.reports)}}


def simulate_every_rank(job: Job, *, seeds: int = 1, ranks: Sequence[int] | None = None, workers: int = 1,
                        progress: Callable[[int, int], None] = lambda _d, _a: None) -> EveryRank:  # fmt: skip
    """Simulate a concrete job with seeds job.seed, job.seed + 1, …; keep the events of some ranks."""
    own = simulate_ranks(job, record=default_ranks(job) if ranks is None else ranks)
    tasks = [(job, job.seed + number) for number in range(1, seeds)]
    others = in_parallel(_report, tasks, workers, progress)
    return EveryRank(own, (report_all_ranks(own), *others))


def default_ranks(job: Job) -> list[int]:
    """Return rank 0, and the slowest, the median and the fastest device."""
    slowness = drawn_slowness(job.machine, job.ranks, job.seed)
    for straggler in job.stragglers:
        slowness[straggler.rank] *= straggler.slowdown
    order = np.argsort(slowness, kind="stable")
    chosen = [0, int(order[-1]), int(order[len(order) // 2]), int(order[0])]
    return sorted(set(chosen))[:SHOWN_DEVICES]


def _report(task: tuple[Job, int]) -> Report:
    job, seed = task
    return report_all_ranks(simulate_ranks(job, seed=seed))
