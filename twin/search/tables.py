"""The answer of a search as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from twin.engine.report import as_json, report
from twin.search.entries import RankedCandidate
from twin.search.search import TOP, Search


def search_json(found: Search) -> dict[str, Any]:
    """Return the object that `fourfold search --json` prints."""
    return {
        "job": found.job.name,
        "model": found.job.model.name,
        "machine": found.job.machine.name,
        "ranks": found.job.ranks,
        "by": found.by,
        "over": sorted(found.over),
        "candidates": len(found.entries),
        "feasible": found.feasible,
        "simulated": found.simulated,
        "best": as_json(found.best, report(found.best), found.wall_seconds),
        "model_top": model_top(found),
        "ranking": [entry_json(entry) for entry in found.entries],
        "wall_seconds": found.wall_seconds,
    }


def model_top(found: Search) -> dict[str, Any]:
    """Say where the published communication model's best lie in the simulated order, the fastest first.

    Whatever decides what is best: the model says nothing of energy.
    """
    top = found.top_of_model
    by_time = found.in_order_of_time
    places = {entry.model_rank: place for place, entry in enumerate(by_time, 1)}
    ranks = [None if entry.rank is None else places[entry.model_rank] for entry in top]
    fastest = by_time[0].figures if by_time else None
    return {
        "simulated_ranks": ranks,
        "among_fastest": sum(rank is not None and rank <= TOP for rank in ranks),
        "best_slower_than_fastest": min(
            (e.figures.step_seconds / fastest.step_seconds - 1.0 for e in top if e.figures and fastest), default=None
        ),
    }


def entry_json(entry: RankedCandidate) -> dict[str, Any]:
    """Return one candidate as an object: grid, options, figures or the reason there are none."""
    candidate, memory, figures = entry.candidate, entry.candidate.memory, entry.figures
    return {
        "rank": entry.rank,
        "grid": candidate.grid.by_axis(),
        "options": {"micro_sequences": candidate.micro_sequences, **candidate.options.as_json()},
        "feasible": candidate.feasible,
        "reason": candidate.reason or entry.failure or None,
        "hindrance": candidate.hindrance,
        "micro_steps": candidate.micro_steps,
        "step_seconds": figures.step_seconds if figures else None,
        "communication_model_rank": entry.model_rank,
        "communication_model_seconds": candidate.communication_seconds,
        "memory": None
        if memory is None
        else {
            "per_rank_bytes": memory.per_rank_bytes,
            "capacity_bytes": memory.capacity_bytes,
            "fits": memory.fits,
            "over_bytes": max(0.0, memory.per_rank_bytes - memory.capacity_bytes),
            "largest_category": memory.largest_category,
            "by_category": memory.by_category,
        },
        "compute_seconds": figures.compute_seconds if figures else None,
        "exposed_communication_seconds": figures.exposed_seconds if figures else None,
        "exposed_by_axis": figures.exposed_by_axis if figures else None,
        "idle_seconds": figures.idle_seconds if figures else None,
        "tokens_per_second": figures.tokens_per_second if figures else None,
        "hardware_percent_of_peak": figures.hardware_percent_of_peak if figures else None,
        "model_percent_of_peak": figures.model_percent_of_peak if figures else None,
        "energy_joules": figures.energy_joules if figures else None,
        "billed_joules": figures.billed_joules if figures else None,
        "classes": figures.classes if figures else None,
        "global_link_contention": figures.global_link_contention if figures else None,
    }


def flat_table(objects: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return objects as columns, one row each, nested objects flattened with dots."""
    rows = [_flat(one) for one in objects]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    """A column of numbers, words or truths; one that is empty throughout is of numbers."""
    return pa.array(values, type=pa.float64() if all(v is None for v in values) else None)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}{key.replace(' ', '_')}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat
