"""What the ranks of one role spend their time on: by phase, by axis, and what they wait for.

What is known of a segment (`twin.engine.rows`) is worked out once, and counted as often as a rank went through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.description.grid import Axis
from twin.engine.marks import Marks, added, axes_of, row_marks
from twin.engine.rows import Row
from twin.engine.simulation import Part, Simulation
from twin.engine.times import Floats, Ints
from twin.schedule.ops import Compute, Start
from twin.trace.metrics import Breakdown


@dataclass(frozen=True)
class PartSums:
    """What the ranks of a part spend their time on; where their ops are is known only while it is worked out."""

    by_class: list[Breakdown]
    peers_by_axis: dict[Axis, float]
    compute_by_phase: dict[str, float]
    communication_by_axis: dict[str, float]


def of_part(simulation: Simulation, part: Part, weight: Floats) -> PartSums:
    """Work them out; `weight` is the share of each class of ranks."""
    weight = weight[part.classes]
    marks = _marks(part)
    seconds = weight @ part.distinct_seconds
    return PartSums(
        by_class=[
            _breakdown(simulation.step_seconds, row, own) for row, own in zip(part.timeline.rows, marks, strict=True)
        ],
        peers_by_axis=_waiting_for_peers(simulation, part, marks, weight),
        compute_by_phase=_compute_by_phase(part, seconds / simulation.typical_slowness),
        communication_by_axis=_communication_by_axis(part, seconds),
    )


def _marks(part: Part) -> list[Marks]:
    """Sort the ops that are known one by one, of each class of ranks."""
    code = np.array(part.program.code, dtype=np.int8)
    target, axes = np.asarray(part.program.target), axes_of(part.program.calls)
    found: list[Marks] = []
    before: Ints | None = None
    for row in part.timeline.rows:
        found.append(found[-1] if row.ops is before else row_marks(code, target, row.ops, axes))
        before = row.ops
    return found


def _breakdown(step: float, row: Row, marks: Marks) -> Breakdown:
    """Say where the step of one class of ranks goes."""
    if not row.segments:
        return marks.breakdown(step, row.times)
    begin = np.concatenate([each.begins for each in row.segments])
    end = np.concatenate([each.begins + each.segment.seconds for each in row.segments])
    inside = [(len(each.begins), each.segment.seconds, each.segment.breakdown) for each in row.segments]
    return added(marks.breakdown(step, row.times, (begin, end)), inside)


def _compute_by_phase(part: Part, seconds: Floats) -> dict[str, float]:
    """Add up seconds of distinct ops; phases in the order of their first op of any kind."""
    distinct = part.program.ops.distinct
    totals = dict.fromkeys((op.phase for op in distinct), 0.0)
    for op, own in zip(distinct, seconds.tolist(), strict=True):
        if isinstance(op, Compute):
            totals[op.phase] += own
    present = {op.phase for op in distinct if isinstance(op, Compute)}
    return {phase: own for phase, own in totals.items() if phase in present}


def _communication_by_axis(part: Part, seconds: Floats) -> dict[str, float]:
    """Add up seconds of distinct collectives by axis, in the order of the calls."""
    totals: dict[Axis, float] = {}
    for op, own in zip(part.program.ops.distinct, seconds.tolist(), strict=True):
        if isinstance(op, Start):
            totals[op.axis] = totals.get(op.axis, 0.0) + own
    return {axis: totals[axis] for axis in dict.fromkeys(axes_of(part.program.calls)) if axis in totals}


def _waiting_for_peers(simulation: Simulation, part: Part, marks: Sequence[Marks], weight: Floats) -> dict[Axis, float]:
    """Mean time from coming to a wait until the last member has come to the collective.

    Where members run different programs: until the collective begins, its stream's queue included.
    """
    if len(simulation.parts) == 1:
        return _for_last_arrivals(simulation, marks[0], weight)
    seconds: dict[Axis, float] = {}
    for row, own, share in zip(part.timeline.rows, marks, weight.tolist(), strict=True):
        inside = ((len(each.begins), each.segment.waiting_for_peers) for each in row.segments)
        for count, found in ((1, own.waiting_for_peers(row.times)), *inside):
            for axis, waiting in found.items():
                seconds[axis] = seconds.get(axis, 0.0) + share * count * waiting
    return seconds


def _for_last_arrivals(simulation: Simulation, marks: Marks, weight: Floats) -> dict[Axis, float]:
    """Return the same of ranks that all run one program."""
    seconds = {}
    for axis, waits in marks.waits.items():
        gate = _last_arrival(simulation, marks.begun[axis])
        came = simulation.timeline.arrival[:, waits]
        seconds[axis] = float((weight @ np.maximum(gate - came, 0.0)).sum())
    return seconds


def _last_arrival(simulation: Simulation, begun: Ints) -> Floats:
    """When the last member came to each of these collectives, (rank classes, collectives)."""
    part, partition = simulation.only, simulation.partition
    gates = part.timeline.start[:, begun].copy()
    arrival, call = part.timeline.arrival[:, begun], np.asarray(part.program.target)[begun]
    relations = [simulation.communicators[name].partition for name, _, _ in part.program.calls]
    for relation in {relations[number] for number in np.unique(call).tolist()} & set(partition.groups):
        over = np.flatnonzero(np.isin(call, [number for number, own in enumerate(relations) if own == relation]))
        found = arrival[:, over]
        last = np.array([found[list(g.rank_classes)].max(axis=0) for g in partition.groups[relation]])
        gates[:, over] = last[partition.group_class_of_rank_class[relation]]
    return gates
