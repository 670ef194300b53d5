"""What the worker answers: figures of a step before and after, and the events of a few ranks of both."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twin.cost.memory import largest_micro_sequences, memory_use, with_micro_sequences
from twin.description.job import Job
from twin.description.problems import fail
from twin.engine.events import event_table
from twin.engine.report import as_json, report
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.engine.simulation import Simulation
from twin.strategies import load_job

MAX_BLOCKS = 8_000
"""Micro-steps × layers that a page waits for."""
MAX_RANKS, MAX_EVENTS = 3, 300_000
"""Ranks on the timeline, before and after; and events of them all, which the worker sends and a page draws."""
KEPT = 4
"""Simulations that a worker remembers: what is compared with stays the same."""


@dataclass(frozen=True)
class Simulated:
    """One job's step."""

    figures: dict[str, Any]
    """What `fourfold simulate --json` prints."""
    simulation: Simulation


class Memory:
    """Simulates jobs, and remembers the last few."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Simulated] = OrderedDict()

    def simulated(self, raw: Mapping[str, Any]) -> Simulated:
        """Simulate a job. Raises DescriptionError with all that is wrong with it."""
        key = json.dumps(raw, sort_keys=True)
        if key not in self._known:
            self._known[key] = _simulated(raw)
        self._known.move_to_end(key)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return self._known[key]


def _simulated(raw: Mapping[str, Any]) -> Simulated:
    begin = time.perf_counter()
    job = concrete(load_job(raw))
    blocks = job.micro_steps * job.model.layers
    if blocks > MAX_BLOCKS:
        raise fail(
            "batch.micro_sequences",
            f"gives {blocks:,} micro-steps × layers, and this page waits for "
            f"{MAX_BLOCKS:,} at most; use larger micro-batches, or `fourfold simulate`",
            job.concrete_micro_sequences,
        )
    simulation = simulate(job, max_classes=MANY_CLASSES)
    return Simulated(as_json(simulation, report(simulation), time.perf_counter() - begin), simulation)


def concrete(job: Job) -> Job:
    """Settle a micro-batch that is `auto`: the most that fit. Raises DescriptionError if none do."""
    if job.batch.micro_sequences != "auto":
        return job
    most = largest_micro_sequences(job)
    if most is None:
        use = memory_use(with_micro_sequences(job, 1))
        sizes = f"{use.per_rank_bytes / 1e9:.1f} of {use.capacity_bytes / 1e9:.1f} GB"
        raise fail(
            "batch.micro_sequences",
            f"not even one sequence at a time fits: it needs {sizes}; use more ranks or another grid",
            "auto",
        )
    return with_micro_sequences(job, most)


def answer(memory: Memory, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], list[pa.Table]]:
    """Simulate both jobs; return their figures, and the events of the same few ranks of both."""
    before, after = memory.simulated(old), memory.simulated(new)
    ranks = shown_ranks(before.simulation, after.simulation)
    tables = [event_table(one.simulation, ranks) for one in (before, after)] if ranks else []
    head = {"old": before.figures, "new": after.figures, "ranks": ranks}
    return head, tables


def shown_ranks(old: Simulation, new: Simulation) -> list[int]:
    """Ranks worth looking at: the first, slow ones, then those that stand for a class; in both jobs."""
    room = min(MAX_RANKS, MAX_EVENTS // max(old.ops, new.ops, 1))
    least = min(old.job.ranks, new.job.ranks)
    wanted = [
        0,
        *(s.rank for s in (*new.job.stragglers, *old.job.stragglers)),
        *map(int, new.partition.representatives[:64]),
        *map(int, old.partition.representatives[:64]),
    ]
    return sorted([r for r in dict.fromkeys(wanted) if r < least][:room])
