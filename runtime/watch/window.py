"""A few steps summed up on each rank.

How long a collective took is from the arrival of its last member. Ranks of a group find that with one
maximum over all collectives of the window at once, so that no rank has to see the events of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from runtime.parallel.mesh import Mesh
from runtime.tracing.clock import ClockOffset
from runtime.tracing.listener import Note
from twin.description.grid import Axis
from twin.schedule.ops import axis_of

Nanoseconds = NDArray[np.int64]


@dataclass(frozen=True)
class Summary:
    """One rank's part of a window. Nanoseconds by rank 0's clock, arrays (steps,)."""

    begin_ns: Nanoseconds
    end_ns: Nanoseconds
    compute_ns: Nanoseconds
    loading_ns: Nanoseconds
    transfer_ns: dict[Axis, Nanoseconds]
    waited_ns: dict[Axis, Nanoseconds]
    """For the last member of each collective to come."""


def summed_up(
    notes: Sequence[Note], loading_ns: dict[int, int], mesh: Mesh, clock: ClockOffset, device: torch.device
) -> Summary:
    """Sum up what this rank noted; every rank of the mesh must call it, with notes of the same steps."""
    steps = sorted({note.step for note in notes})
    row = {step: number for number, step in enumerate(steps)}
    begin, end = np.full(len(steps), 2**62), np.zeros(len(steps), dtype=np.int64)
    compute = np.zeros(len(steps), dtype=np.int64)
    for note in notes:
        at = row[note.step]
        begin[at] = min(begin[at], note.begin_ns + clock.offset_ns)
        end[at] = max(end[at], note.end_ns + clock.offset_ns)
        if note.kind == "compute":
            compute[at] += note.end_ns - note.begin_ns
    transfer: dict[Axis, Nanoseconds] = {}
    waited: dict[Axis, Nanoseconds] = {}
    for communicator, group in mesh.groups.items():
        mine = [n for n in notes if n.kind == "collective" and n.op.communicator == communicator]
        axis = axis_of(communicator)
        took, late = _collectives(mine, row, group, clock, device)
        transfer[axis] = transfer.get(axis, 0) + took
        waited[axis] = waited.get(axis, 0) + late
    loaded = np.array([loading_ns.get(step, 0) for step in steps], dtype=np.int64)
    return Summary(begin.astype(np.int64), end, compute, loaded, transfer, waited)


def _collectives(
    mine: Sequence[Note], row: dict[int, int], group: dist.ProcessGroup, clock: ClockOffset, device: torch.device
) -> tuple[Nanoseconds, Nanoseconds]:
    """Seconds of a communicator's collectives from the last arrival on, and until it, by step."""
    arrival = np.array([note.begin_ns for note in mine], dtype=np.int64) + clock.offset_ns
    end = np.array([note.end_ns for note in mine], dtype=np.int64) + clock.offset_ns
    last = torch.from_numpy(arrival.copy()).to(device)
    dist.all_reduce(last, dist.ReduceOp.MAX, group=group)
    met = last.cpu().numpy()
    # a collective begins when its communicator is through with the one before
    start = np.maximum(met, np.concatenate([arrival[:1], np.maximum.accumulate(end)[:-1]]))
    at = np.array([row[note.step] for note in mine], dtype=np.int64)
    sums = [np.zeros(len(row), dtype=np.int64) for _ in range(2)]
    np.add.at(sums[0], at, np.maximum(end - start, 0))
    np.add.at(sums[1], at, np.maximum(met - arrival, 0))
    return sums[0], sums[1]
