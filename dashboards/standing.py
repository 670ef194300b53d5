"""For which ranks of its job each rank of a run stands that was written, and means and quantiles in which it counts so.

A folded run has the events of one rank of each class, or of those that were asked for. A rank that was written stands
for itself; any other is stood for by the first written rank of its class, as `twin.compare.side` has it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.catalog import Catalog, Entry
from dashboards.events import Events, Ints, grid_of, mesh_of
from twin.description.problems import fail
from twin.trace.store import CLASSES, read_classes

Weights = Mapping[int, int]
"""Ranks of the job that each written rank stands for; one each of those that are not in it."""
EACH_ONE: Weights = {}
"""Every rank was written, or nobody knows for which others those that were stand."""


def stand_ins(catalog: Catalog, entry: Entry, events: Events) -> dict[int, int]:
    """Return the written rank that stands for each rank of a job; of a run that is not folded the written ones alone.

    Ranks for which none stands are left out. Raises DescriptionError where classes are not those of the job's ranks.
    """
    written = events.ranks.tolist()
    themselves = {rank: rank for rank in written}
    folded = entry.kind == "predicted" and catalog.file(entry, CLASSES).is_file()
    classes = read_classes(entry.path, entry.head) if folded else None
    if classes is None:
        return themselves
    ranks = grid_of(entry).ranks
    if len(classes) != ranks or min(classes) != 0 or max(classes) != ranks - 1:
        raise fail(f"{entry.label}/{CLASSES}", f"does not give each of the {ranks} ranks a class")
    of_class = {classes[rank]: rank for rank in reversed(written) if rank in classes}
    return {rank: of_class[number] for rank, number in classes.items() if number in of_class} | themselves


def weights_of(catalog: Catalog, entry: Entry, events: Events) -> Weights:
    """Return how many ranks of its job each written rank stands for. Raises DescriptionError."""
    return Counter(stand_ins(catalog, entry, events).values())


def per_event(events: Events, weights: Weights) -> Ints:
    """Return (events,) how many ranks the rank of each event stands for."""
    of_rank = np.array([weights.get(rank, 1) for rank in events.ranks.tolist()], dtype=np.int64)
    return of_rank[np.searchsorted(events.ranks, events.rank)] if len(of_rank) else of_rank


def total_of(events: Events, weights: Weights) -> int:
    """Return for how many ranks those that were written stand together."""
    return sum(weights.get(rank, 1) for rank in events.ranks.tolist())


def over(entry: Entry, written: int, total: int) -> str:
    """Say whose means are those of `written` ranks, which stand for `total`: "ranks", or "4 of 64 ranks" if not of all.

    A job that names no grid may have any number of them.
    """
    job = entry.head.get("job")
    grid = mesh_of(job.get("grid") if isinstance(job, Mapping) else None)
    return "ranks" if grid is None or total >= grid.ranks else f"{written:,} of {grid.ranks:,} ranks"


def seconds_by_name(of: object) -> dict[str, float]:
    """Return a mapping of a manifest with its seconds by name; empty if any is none."""
    if not isinstance(of, dict):
        return {}
    known = all(type(value) in (int, float) and 0.0 <= value < math.inf for value in of.values())
    return {str(name): float(value) for name, value in of.items()} if known else {}


def quantile(values: NDArray[np.number[Any]], weights: Ints, share: float) -> float:
    """Return the value below which a share of all lies, each counted as often as its weight; between two linearly.

    That of values written out so often, as `numpy.quantile` has it.

    >>> quantile(np.array([7, 1]), np.array([1, 3]), 0.5), quantile(np.array([1, 2]), np.array([1, 1]), 0.5)
    (1.0, 1.5)
    """
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(weights[order])
    at = share * (int(reach[-1]) - 1)
    below, above = (float(values[order[np.searchsorted(reach, n, side="right")]]) for n in (np.floor(at), np.ceil(at)))
    return below + (above - below) * float(at - np.floor(at))
