"""From a simulated timeline to the event table of chosen ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twin.engine.program import COMPUTE, START, WAIT
from twin.engine.simulate import Simulation
from twin.schedule.ops import COMMUNICATOR_AXIS, Compute, Start
from twin.trace.names import group_number, micro_step, short_name
from twin.trace.table import SCHEMA

MOST_EVENTS = 5_000_000


def event_table(simulation: Simulation, ranks: Sequence[int], *, step: int = 0) -> pa.Table:
    """Build the events of some ranks, ordered by rank and program order.

    A rank that was not simulated itself has the times of its class.
    """
    program = simulation.program
    if len(ranks) * len(program) > MOST_EVENTS:
        most = MOST_EVENTS // max(len(program), 1)
        raise ValueError(f"{len(ranks)} ranks have {len(ranks) * len(program):,} events; choose at most {most}")
    columns = _op_columns(simulation, step)
    classes = simulation.partition.rank_class[np.array(ranks, dtype=np.int64)]
    if (classes < 0).any():
        raise ValueError(f"the events of rank {ranks[int(np.argmin(classes))]} were not kept")
    times = {
        name: _nanoseconds(values[classes].ravel())
        for name, values in (
            ("start_ns", simulation.timeline.start),
            ("end_ns", simulation.timeline.end),
            ("arrival_ns", simulation.timeline.arrival),
        )
    }
    count = len(program)
    arrays = {name: _repeat(array, len(ranks)) for name, array in columns.items()}
    arrays["rank"] = pa.array(np.repeat(np.array(ranks, dtype=np.int32), count))
    arrays["group"] = pa.array(_groups(simulation, ranks), mask=np.tile(_no_group(simulation), len(ranks)))
    arrays |= {name: pa.array(values) for name, values in times.items()}
    return pa.table({field.name: arrays[field.name] for field in SCHEMA}, schema=SCHEMA)


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)


def _repeat(array: pa.Array, times: int) -> pa.Array:
    return pa.concat_arrays([array] * times) if times > 1 else array


def _op_columns(simulation: Simulation, step: int) -> dict[str, pa.Array]:
    program = simulation.program
    kind_of = {COMPUTE: "compute", START: "collective", WAIT: "wait"}
    op_names, kinds, streams, axes, phases, names, layers, micros, sizes = ([] for _ in range(9))
    for index, (op, values) in enumerate(program.ops):
        full = op.name.format_map(values)
        code = program.code[index]
        started = op if code == START else program.ops[program.target[index]][0] if code == WAIT else None
        op_names.append(f"step{step}/{full}" + ("/wait" if code == WAIT else ""))
        kinds.append(kind_of[code])
        streams.append(op.communicator if isinstance(op, Start) else "compute")
        axes.append(COMMUNICATOR_AXIS[started.communicator] if isinstance(started, Start) else None)
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


def _no_group(simulation: Simulation) -> NDArray[np.bool_]:
    return np.asarray(np.array(simulation.program.code) == COMPUTE, dtype=np.bool_)


def _groups(simulation: Simulation, ranks: Sequence[int]) -> NDArray[np.int32]:
    """Number of the group, within its axis, that each rank meets in each op."""
    program = simulation.program
    grid = simulation.job.concrete_grid
    axes = [COMMUNICATOR_AXIS[communicator] for communicator, _, _ in program.calls]
    call = np.array(
        [
            -1 if c == COMPUTE else program.target[i] if c == START else program.target[program.target[i]]
            for i, c in enumerate(program.code)
        ]
    )
    rows = []
    for rank in ranks:
        number = [group_number(grid, rank, axis) for axis in axes]
        table = np.array([*number, 0], dtype=np.int32)
        rows.append(table[call])
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
