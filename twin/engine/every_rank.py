"""`simulate --engine ranks`: every rank of a job on its own, for one seed or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twin.description.job import Job
from twin.engine.all_ranks import AllRanks, simulate_ranks, slowness_of_devices
from twin.engine.parallel import in_parallel
from twin.engine.report import Report, report_all_ranks
from twin.engine.seeds import spread_of


@dataclass(frozen=True)
class EveryRank:
    """The step of the job's own seed, and the figures of all seeds (the own one first)."""

    simulation: AllRanks
    reports: tuple[Report, ...]

    @property
    def figures(self) -> Report:
        """Figures of the job's own seed."""
        return self.reports[0]

    @property
    def middle(self) -> Report:
        """Figures of the seed whose step is the median; of an even number, the shorter of the two in the middle."""
        return sorted(self.reports, key=lambda one: one.step_seconds)[(len(self.reports) - 1) // 2]

    def distribution(self) -> dict[str, Any]:
        """What JSON says about the seeds; empty for one."""
        if len(self.reports) == 1:
            return {}
        return {"seeds": {"count": len(self.reports), **spread_of(self.reports)}}


def simulate_every_rank(
    job: Job,
    *,
    seeds: int = 1,
    ranks: Sequence[int] | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda _d, _a: None,
) -> EveryRank:
    """Simulate a concrete job with seeds job.seed, job.seed + 1, …; keep the events of some ranks."""
    own = simulate_ranks(job, record=default_ranks(job) if ranks is None else ranks)
    tasks = [(job, job.seed + number) for number in range(1, seeds)]
    others = in_parallel(_report, tasks, workers, progress)
    return EveryRank(own, (report_all_ranks(own), *others))


def default_ranks(job: Job) -> list[int]:
    """Return the ranks whose events are kept if none are named: rank 0, and the slowest, median and fastest device."""
    order = np.argsort(slowness_of_devices(job, job.seed), kind="stable").tolist()
    return sorted({0, order[-1], order[len(order) // 2], order[0]})


def _report(task: tuple[Job, int]) -> Report:
    job, seed = task
    return report_all_ranks(simulate_ranks(job, seed=seed))
