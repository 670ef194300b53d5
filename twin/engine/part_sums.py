"""What the ranks of one role spend their time on: by phase, by axis, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.description.grid import Axis
from twin.engine.program import COMPUTE, START, WAIT, Program
from twin.engine.simulate import Part, Simulation
from twin.schedule.ops import axis_of
from twin.trace.metrics import Breakdown, Intervals, breakdown


@dataclass(frozen=True)
class PartSums:
    """What the ranks of a part spend their time on; where their ops are is known only while it is worked out."""

    by_class: list[Breakdown]
    peers_by_axis: dict[Axis, float]
    compute_by_phase: dict[str, float]
    communication_by_axis: dict[str, float]


def of_part(simulation: Simulation, part: Part, weight: NDArray[np.float64]) -> PartSums:
    """Work them out; `weight` is the share of each class of ranks."""
    found = marks(part.program)
    return PartSums(
        by_class=[class_breakdown(simulation, part, found, row) for row in range(len(part.classes))],
        peers_by_axis=_waiting_for_peers(simulation, part, found, weight),
        compute_by_phase=_compute_by_phase(simulation, part, weight),
        communication_by_axis=_communication_by_axis(part, found, weight),
    )


@dataclass(frozen=True)
class Marks:
    """Op indices of a program by what they are."""

    compute: NDArray[np.int64]
    starts: dict[Axis, NDArray[np.int64]]
    """Collectives by axis."""
    waits: dict[Axis, NDArray[np.int64]]
    """Waits by the axis of what they wait for."""


def marks(program: Program) -> Marks:
    """Sort a program's op indices into compute, collectives and waits by axis."""
    code, target = np.array(program.code), np.array(program.target)
    axes = list(dict.fromkeys(axis_of(c) for c, _, _ in program.calls))
    axis_of_call = np.array([axes.index(axis_of(c)) for c, _, _ in program.calls], dtype=np.int64)
    starts, waits = np.flatnonzero(code == START), np.flatnonzero(code == WAIT)
    return Marks(
        np.flatnonzero(code == COMPUTE),
        _by_axis(axes, starts, axis_of_call[target[starts]]),
        _by_axis(axes, waits, axis_of_call[target[target[waits]]]),
    )


def _by_axis(axes: Sequence[Axis], ops: NDArray[np.int64], axis: NDArray[np.int64]) -> dict[Axis, NDArray[np.int64]]:
    """Sort op indices by their axes' numbers; an axis without any is left out."""
    return {name: ops[axis == number] for number, name in enumerate(axes) if (axis == number).any()}


def class_breakdown(simulation: Simulation, part: Part, found: Marks, row: int) -> Breakdown:
    """Where the step of one class of ranks goes: a row of its part; `found` are the marks of the program."""
    start, end = part.timeline.start[row], part.timeline.end[row]

    def at(indices: NDArray[np.int64]) -> Intervals:
        return start[indices], end[indices]

    return breakdown(
        simulation.step_seconds,
        at(found.compute),
        {axis: at(indices) for axis, indices in found.starts.items()},
        {axis: at(indices) for axis, indices in found.waits.items()},
    )


def _compute_by_phase(simulation: Simulation, part: Part, weight: NDArray[np.float64]) -> dict[str, float]:
    duration = weight[part.classes] @ (part.timeline.end - part.timeline.start)
    number: dict[str, int] = {}
    program = part.program
    computes = np.flatnonzero(np.array(program.code) == COMPUTE)
    phase = program.each(lambda op: number.setdefault(op.phase, len(number)))[computes].astype(np.int64)
    totals = np.bincount(phase, weights=duration[computes] / simulation.typical_slowness, minlength=len(number))
    present = np.bincount(phase, minlength=len(number)) > 0
    return {name: float(totals[i]) for name, i in number.items() if present[i]}


def _communication_by_axis(part: Part, found: Marks, weight: NDArray[np.float64]) -> dict[str, float]:
    duration = weight[part.classes] @ (part.timeline.end - part.timeline.start)
    return {axis: float(duration[i].sum()) for axis, i in found.starts.items()}


def _waiting_for_peers(
    simulation: Simulation, part: Part, found: Marks, weight: NDArray[np.float64]
) -> dict[Axis, float]:
    """Mean time from coming to a wait until the last member has come to the collective.

    Where members run different programs: until the collective begins, its stream's queue included.
    """
    target = np.array(part.program.target)
    seconds: dict[Axis, float] = {}
    for axis, waits in found.waits.items():
        start = target[waits]
        gate = _last_arrival(simulation, axis, start) if len(simulation.parts) == 1 else part.timeline.start[:, start]
        came = part.timeline.arrival[:, waits]
        seconds[axis] = float((weight[part.classes] @ np.maximum(gate - came, 0.0)).sum())
    return seconds


def _last_arrival(simulation: Simulation, axis: Axis, start: NDArray[np.int64]) -> NDArray[np.float64]:
    """When the last member came to each of these collectives of an axis, (rank classes, collectives)."""
    part, partition = simulation.only, simulation.partition
    relations = {c.partition for c in simulation.communicators.values() if c.axis == axis} & set(partition.groups)
    if len(relations) != 1:
        return part.timeline.start[:, start]
    (relation,) = relations
    arrival = part.timeline.arrival[:, start]
    last = np.array([arrival[list(g.rank_classes)].max(axis=0) for g in partition.groups[relation]])
    gates: NDArray[np.float64] = last[partition.group_class_of_rank_class[relation]]
    return gates
