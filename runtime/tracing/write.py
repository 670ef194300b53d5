"""Notes of all ranks to one event table.

A rank knows when it came to a collective, not when the last member did: that is put together
here. `arrival_ns` is a rank's own arrival, `start_ns` the last one of its group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from runtime.parallel.mesh import Mesh
from runtime.tracing.clock import ClockOffset
from runtime.tracing.listener import Note
from twin import __version__
from twin.description.job import Job
from twin.pages.timeline import timeline_html
from twin.schedule.communicator import Communicator
from twin.schedule.ops import axis_of
from twin.trace.names import group_number, short_name
from twin.trace.store import write_trace
from twin.trace.table import SCHEMA

WAYS = ("send", "receive")
"""Last words of the names of messages."""
MAX_DRAWN = 8
"""Ranks drawn in the timeline page."""


def notes_table(
    notes: Sequence[Note], mesh: Mesh, clock: ClockOffset, known: Mapping[str, Communicator] | None = None
) -> pa.Table:
    """One rank's notes in the schema of the event table; starts of collectives are arrivals still.

    `known` are communicators of the twin by name, whose groups are numbered as it numbers them.
    """
    word = pa.dictionary(pa.int32(), pa.string())
    talked = [n.op.communicator for n in notes]
    number = {name: of_group(mesh, name, known) for name in set(talked) if name is not None}
    axes = [None if name is None else axis_of(name) for name in talked]
    groups = [None if name is None else number[name] for name in talked]
    begin = np.array([n.begin_ns for n in notes], dtype=np.int64) + clock.offset_ns
    end = np.array([n.end_ns for n in notes], dtype=np.int64) + clock.offset_ns
    suffix = {"wait": "/wait"}
    busy = [n.kind != "wait" for n in notes]
    columns: dict[str, Any] = {
        "rank": pa.array([mesh.rank] * len(notes), pa.int32()),
        "stream": pa.array(
            [n.op.communicator if n.kind == "collective" else "compute" for n in notes], pa.string()
        ).cast(word),
        "op": pa.array([f"step{n.step}/{n.op.name}{suffix.get(n.kind, '')}" for n in notes], pa.string()),
        "kind": pa.array([n.kind for n in notes], pa.string()).cast(word),
        "name": pa.array([short_name(n.op.name) for n in notes], pa.string()).cast(word),
        "phase": pa.array([n.op.phase for n in notes], pa.string()).cast(word),
        "layer": pa.array([n.op.layer for n in notes], pa.int32()),
        "step": pa.array([n.step for n in notes], pa.int32()),
        "micro": pa.array([n.op.micro for n in notes], pa.int32()),
        "axis": pa.array(axes, pa.string()).cast(word),
        "group": pa.array(groups, pa.int32()),
        "bytes": pa.array([n.op.bytes * b for n, b in zip(notes, busy, strict=True)], pa.float64()),
        "flops": pa.array([n.op.flops * b for n, b in zip(notes, busy, strict=True)], pa.float64()),
        "start_ns": pa.array(begin),
        "end_ns": pa.array(end),
        "arrival_ns": pa.array(begin),
    }
    return pa.table({f.name: columns[f.name] for f in SCHEMA}, schema=SCHEMA)


def of_group(mesh: Mesh, name: str, known: Mapping[str, Communicator] | None = None) -> int:
    """Return the number of a rank's group among those of a communicator: the twin's, if it knows it."""
    if known is not None and name in known:
        own = np.flatnonzero((known[name].members == mesh.rank).any(axis=1))
        if own.size:
            return int(own[0])
    return group_number(mesh.grid, mesh.rank, mesh.grid.along(name))


@dataclass(frozen=True)
class Corrections:
    """What putting ranks together changed of what they noted. Nanoseconds."""

    ends_moved: int
    """Collectives that ended, by the ranks' clocks, before their last member came."""
    largest_ns: int
    """The longest of these moves: more than the clocks' uncertainty is a clock that jumped or drifted."""
    put_in_a_row: int
    """Collectives that began before their communicator was through with the one before."""
    largest_overlap_ns: int
    """The longest of these overlaps; gloo runs collectives on two threads."""


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """Put ranks together: when the last member of a collective came, and times from the first event."""
    return put_together(tables)[0]


def put_together(tables: Sequence[pa.Table]) -> tuple[pa.Table, Corrections]:
    """Merge ranks' tables, and count what had to be changed for it."""
    table = pa.concat_tables(tables).combine_chunks().unify_dictionaries()
    arrival = table.column("arrival_ns").to_numpy()
    start, end = arrival.copy(), table.column("end_ns").to_numpy().copy()
    collective = np.flatnonzero(np.array(table.column("kind").to_pylist()) == "collective")
    _meet(table, collective, start)
    # clocks are aligned within some uncertainty only, and gloo runs collectives of a communicator on
    # two threads: an event begins no earlier than its predecessor on the stream ends
    met, early = start.copy(), np.maximum(start - end, 0)[collective]
    end = np.maximum(end, start)
    _in_order(table, collective, start, end)
    overlap = (start - met)[collective]
    changed = Corrections(
        int(np.sum(early > 0)), int(early.max(initial=0)), int(np.sum(overlap > 0)), int(overlap.max(initial=0))
    )
    zero = int(arrival.min()) if len(arrival) else 0
    for name, values in (("start_ns", start), ("end_ns", end), ("arrival_ns", arrival)):
        table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), pa.array(values - zero))
    return table, changed


def _meet(table: pa.Table, collective: np.ndarray, start: np.ndarray) -> None:
    """Let a collective start when the last member of its group arrives; a message when both ends have come."""
    ops, groups = _meetings(table, collective), table.column("group").to_pylist()
    last: dict[tuple[str, int], int] = {}
    for row in collective:
        key = ops[row], groups[row]
        last[key] = max(last.get(key, 0), int(start[row]))
    for row in collective:
        start[row] = last[ops[row], groups[row]]


def _meetings(table: pa.Table, collective: np.ndarray) -> list[str]:
    """Name what the members of a group come to: for most the op, which all of them call the same.

    A send and the receive at its other end are two ops, of chunks that may have different numbers. Between two ranks
    messages of a communicator arrive in the order in which they were sent.
    """
    names: list[str] = table.column("op").to_pylist()
    ranks, groups, streams, steps = (table.column(column).to_pylist() for column in ("rank", "group", "stream", "step"))
    count: dict[tuple[int, str, int, str], int] = {}
    pair: dict[tuple[str, int], list[int]] = {}
    for row in collective:
        if names[row].rpartition("/")[2] in WAYS:
            seen = pair.setdefault((streams[row], groups[row]), [])
            if ranks[row] not in seen:
                seen.append(ranks[row])
    for row in collective:
        way = names[row].rpartition("/")[2]
        if way not in WAYS:
            continue
        key = ranks[row], streams[row], steps[row], way
        number = count[key] = count.get(key, -1) + 1
        # from the smaller rank of the pair to the larger one, or back
        up = (ranks[row] == min(pair[streams[row], groups[row]])) == (way == "send")
        names[row] = f"step{steps[row]}/{streams[row]}/{'up' if up else 'down'}{number}"
    return names


def _in_order(table: pa.Table, collective: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
    ranks, streams = table.column("rank").to_pylist(), table.column("stream").to_pylist()
    free: dict[tuple[int, str], int] = {}
    for row in collective[np.argsort(start[collective], kind="stable")]:
        key = ranks[row], streams[row]
        start[row] = max(int(start[row]), free.get(key, 0))
        free[key] = end[row] = max(int(end[row]), int(start[row]))


def write_run_trace(
    directory: Path,
    job: Job,
    tables: Sequence[pa.Table],
    clocks: Sequence[ClockOffset],
    facts: dict[str, Any],
    *,
    overwrite: bool,
) -> pa.Table:
    """Write manifest, events and timeline page of a measured run; returns the events."""
    events, changed = put_together(tables)
    manifest = {
        "kind": "measured",
        "job": job.model_dump(mode="json", by_alias=True),
        "code_version": __version__,
        "clock": {"method": clocks[-1].method, "uncertainty_ns": max(c.uncertainty_ns for c in clocks)},
        "corrections": asdict(changed),
        "seed": job.seed,
        "ranks_written": list(range(len(tables))),
        **facts,
    }
    grid = job.concrete_grid
    names = {
        rank: f"rank {rank} ({', '.join(f'{a} {place}' for a, place in grid.coordinates(rank).items())})"
        for rank in range(min(len(tables), MAX_DRAWN))
    }
    drawn = events.filter(pa.array(np.isin(events.column("rank").to_numpy(), list(names))))
    title = f"{job.name} on {job.ranks:,} ranks, measured"
    plain = [fact for fact in facts.items() if not isinstance(fact[1], dict)]
    page = timeline_html(drawn, names, title, [("grid", str(grid)), *map(_shown, plain)])
    write_trace(directory, manifest, events, texts={"timeline.html": page}, overwrite=overwrite)
    return events


def _shown(fact: tuple[str, Any]) -> tuple[str, str]:
    return fact[0], ", ".join(map(str, fact[1])) if isinstance(fact[1], list) else str(fact[1])
