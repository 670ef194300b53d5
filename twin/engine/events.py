"""From a simulated timeline to the event table of chosen ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twin.engine.program import COMPUTE, START, WAIT, Program
from twin.engine.simulation import Part, Simulation
from twin.schedule.communicator import Communicator
from twin.schedule.ops import Compute, Start
from twin.trace.names import micro_step, short_name
from twin.trace.table import SCHEMA

MAX_EVENTS = 5_000_000


def event_table(simulation: Simulation, ranks: Sequence[int], *, step: int = 0) -> pa.Table:
    """Build the events of some ranks, ordered by rank and program order.

    A rank that was not simulated itself has the times of its class.
    """
    found = _of_ranks(simulation, ranks)
    if (events := sum(len(part.program) for part, _ in found)) > MAX_EVENTS:
        most = MAX_EVENTS * len(ranks) // events
        remedy = f"choose at most {most}" if most else "choose fewer micro-batches"
        raise ValueError(f"{len(ranks)} ranks have {events:,} events, a table holds {MAX_EVENTS:,}; {remedy}")
    columns = {id(part): _op_columns(part.program, step) for part in simulation.parts}
    tables = []
    for part, own in groupby(zip(ranks, found, strict=True), key=lambda one: one[1][0]):
        chosen = list(own)
        rows = np.array([row for _, (_, row) in chosen], dtype=np.int64)
        tables.append(_part_table(simulation, part, [rank for rank, _ in chosen], rows, columns[id(part)]))
    return pa.concat_tables(tables).combine_chunks() if len(tables) != 1 else tables[0]


def fitting(simulation: Simulation, ranks: Sequence[int]) -> list[int]:
    """Return all ranks if a table holds their events, else as many as it holds, spread evenly from first to last."""
    events = np.array([len(part.program) for part, _ in _of_ranks(simulation, ranks)])
    for count in range(min(len(ranks), len(ranks) * MAX_EVENTS // max(int(events.sum()), 1) + 1), 1, -1):
        places = np.linspace(0, len(ranks) - 1, count).round().astype(int)
        if events[places].sum() <= MAX_EVENTS:
            return [ranks[place] for place in places]
    return list(ranks[:1])


def _of_ranks(simulation: Simulation, ranks: Sequence[int]) -> list[tuple[Part, int]]:
    """Find the part of each rank, and its row there."""
    classes = simulation.partition.rank_class[np.array(ranks, dtype=np.int64)]
    if (classes < 0).any():
        raise ValueError(f"the events of rank {ranks[int(np.argmin(classes))]} were not kept")
    of_class = {int(c): (part, row) for part in simulation.parts for row, c in enumerate(part.classes)}
    return [of_class[int(c)] for c in classes]


def _part_table(
    simulation: Simulation, part: Part, ranks: Sequence[int], rows: NDArray[np.int64], columns: dict[str, pa.Array]
) -> pa.Table:
    """Events of ranks that run the same program; `rows` are theirs in the part's timeline."""
    timeline, count = part.timeline, len(part.program)
    times = {
        name: _nanoseconds(values[rows].ravel())
        for name, values in (("start_ns", timeline.start), ("end_ns", timeline.end), ("arrival_ns", timeline.arrival))
    }
    arrays = {name: _repeat(array, len(ranks)) for name, array in columns.items()}
    arrays["rank"] = pa.array(np.repeat(np.array(ranks, dtype=np.int32), count))
    groups = _groups(simulation, part.program, ranks)
    arrays["group"] = pa.array(groups, mask=np.tile(_no_group(part.program), len(ranks)))
    arrays |= {name: pa.array(values) for name, values in times.items()}
    return pa.table({field.name: arrays[field.name] for field in SCHEMA}, schema=SCHEMA)


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)


def _repeat(array: pa.Array, times: int) -> pa.Array:
    return pa.concat_arrays([array] * times) if times > 1 else array


def _op_columns(program: Program, step: int) -> dict[str, pa.Array]:
    kind_of = {COMPUTE: "compute", START: "collective", WAIT: "wait"}
    op_names, kinds, streams, axes, phases, names, layers, micros, sizes = ([] for _ in range(9))
    for index, (op, values) in enumerate(program.ops):
        full = op.name.format_map(values)
        code = program.code[index]
        started = op if code == START else program.ops[program.target[index]][0] if code == WAIT else None
        op_names.append(f"step{step}/{full}" + ("/wait" if code == WAIT else ""))
        kinds.append(kind_of[code])
        streams.append(op.communicator if isinstance(op, Start) else "compute")
        axes.append(started.axis if isinstance(started, Start) else None)
        phases.append(op.phase)
        names.append(short_name(full))
        layers.append(op.layer)
        micros.append(micro_step(full))
        sizes.append(_bytes(op))
    word = pa.dictionary(pa.int32(), pa.string())
    flops = program.flops()
    return {
        "op": pa.array(op_names, pa.string()),
        "kind": pa.array(kinds, pa.string()).cast(word),
        "stream": pa.array(streams, pa.string()).cast(word),
        "axis": pa.array(axes, pa.string()).cast(word),
        "phase": pa.array(phases, pa.string()).cast(word),
        "name": pa.array(names, pa.string()).cast(word),
        "layer": pa.array(layers, pa.int32()),
        "micro": pa.array(micros, pa.int32()),
        "step": pa.array(np.full(len(names), step, dtype=np.int32)),
        "bytes": pa.array(sizes, pa.float64()),
        "flops": pa.array(flops, pa.float64()),
    }


def _bytes(op: Any) -> float:
    if isinstance(op, Start):
        return op.bytes
    return float(op.kernel.bytes) if isinstance(op, Compute) else 0.0


def _no_group(program: Program) -> NDArray[np.bool_]:
    return np.asarray(np.array(program.code) == COMPUTE, dtype=np.bool_)


def _groups(simulation: Simulation, program: Program, ranks: Sequence[int]) -> NDArray[np.int32]:
    """Number of the group, within its partition, that each rank meets in each op."""
    call = np.array(
        [
            -1 if c == COMPUTE else program.target[i] if c == START else program.target[program.target[i]]
            for i, c in enumerate(program.code)
        ]
    )
    of_call = [_group_of_rank(simulation.communicators[c], ranks) for c, _, _ in program.calls]
    rows = []
    for position in range(len(ranks)):
        table = np.array([*(int(numbers[position]) for numbers in of_call), 0], dtype=np.int32)
        rows.append(table[call])
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)


def _group_of_rank(communicator: Communicator, ranks: Sequence[int]) -> NDArray[np.int64]:
    """Number of each rank's group; that of a rank that is in none does not matter."""
    members = communicator.members
    number = np.zeros(max(int(members.max()), *ranks, 0) + 1, dtype=np.int64)
    number[members.ravel()] = np.repeat(np.arange(len(members)), members.shape[1])
    return number[np.array(ranks, dtype=np.int64)]
