"""How many ranks a run's collectives run over: as the strategy of its job has them, or as its events show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dashboards.catalog import Entry
from dashboards.events import Events, grid_of
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.description.strangers import refuse_paths
from twin.description.train import without_training
from twin.strategies import load_job, strategy_of

Members = Mapping[str, int]
"""Ranks of a group, by the communicator whose stream it has. One of which nobody knows is not in it."""


def job_of(entry: Entry) -> Job | None:
    """Return the job of a run as the twin knows it; None where it does not."""
    described = entry.head.get("job")
    if not isinstance(described, dict):
        return None
    raw = without_training(described)
    try:
        refuse_paths(entry.label, raw)
        return load_job(raw)
    except DescriptionError:
        return None


def members_of(entry: Entry, events: Events) -> Members:
    """Return the members of each communicator of a run: a group may be a part of its axis, or cross several."""
    job = job_of(entry)
    known = {} if job is None or job.grid == "auto" else {c.name: c.size for c in strategy_of(job).communicators(job)}
    return met(events, grid_of(entry).ranks) | known


def met(events: Events, ranks: int) -> dict[str, int]:
    """Count who meets in each communicator; none if not all ranks of the run were written, or groups differ."""
    if len(events.ranks) < ranks:
        return {}
    at = np.flatnonzero(events.kind.are("collective") & (events.group >= 0))
    met = np.unique(np.stack([events.stream.code[at], events.group[at], events.rank[at]], axis=1), axis=0)
    groups, sizes = np.unique(met[:, :2], axis=0, return_counts=True)
    found: dict[str, set[int]] = {}
    for stream, size in zip(groups[:, 0].tolist(), sizes.tolist(), strict=True):
        found.setdefault(events.stream.words[stream], set()).add(size)
    return {stream: each.pop() for stream, each in found.items() if len(each) == 1}
