"""The pipeline of a simulated step: one rank of each stage, its passes and its bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.engine.program import COMPUTE, START
from twin.engine.rows import Occurrences
from twin.engine.segment import Segment
from twin.engine.simulate import Part, Simulation
from twin.engine.times import Ints, Times
from twin.trace.bubbles import PipelineRun
from twin.trace.passes import PassName, RankOps, numbered, pass_and_variable_of


def pipeline_of(simulation: Simulation) -> PipelineRun | None:
    """Return the pipeline that the slowest device is in, of the first ones if all are alike; None if there is none.

    A job has a pipeline if its strategy has several roles and names their ops as passes. Ranks in the same place of
    each role, such as those of one replica, make one.
    """
    sizes = {len(part.role.ranks) for part in simulation.parts}
    if len(simulation.parts) < 2 or len(sizes) > 1:
        return None
    ranks = np.stack([part.role.ranks for part in simulation.parts], axis=1)
    classes = simulation.partition.rank_class[ranks]
    if (classes < 0).any():
        return None
    chosen = int(np.argmax(simulation.slowness[classes].max(axis=1)))
    found, merged = [], _Merged()
    for stage, part in enumerate(simulation.parts):
        row = int(np.flatnonzero(part.classes == classes[chosen, stage])[0])
        found.append((stage, int(ranks[chosen, stage]), _ops(part, row, merged)))
    return PipelineRun.of(found, simulation.step_seconds)


def _ops(part: Part, number: int, merged: _Merged) -> RankOps:
    """Columns of one class of ranks: what is known of segments is one op for each pass in them."""
    program, row = part.program, part.timeline.rows[number]
    code, which = np.asarray(program.code), np.asarray(program.ops.which)
    read = [pass_and_variable_of(op.name) for op in program.ops.distinct]
    distinct, variables = [each for each, _ in read], [variable for _, variable in read]
    known: dict[PassName, int] = {}
    template = np.array([each if isinstance(each, int) else known.setdefault(each, len(known)) for each in distinct])
    several = [_Columns(row.ops, row.times, code[row.ops])]
    for each in row.segments:
        own = each.representative
        several.append(_Columns.of(each, merged.of(each.segment, template[which[own]], program.ops.stretch_of(own))))
    columns = _Columns.joined(several)
    of_op = which[columns.op]
    micro = program.ops.values_of("micro", columns.op)
    for variable in sorted(set(variables) - {"micro"}):
        named = np.array([each == variable for each in variables], dtype=bool)[of_op]
        micro = np.where(named, program.ops.values_of(variable, columns.op), micro)
    names, numbers = numbered(distinct, of_op, micro)
    times = columns.times
    return RankOps(
        names, numbers, columns.code == COMPUTE, columns.code == START, times.arrival, times.start, times.end
    )


@dataclass(frozen=True)
class _Columns:
    """Ops with their times, or what stands for several."""

    op: Ints
    """Number of the op, or of the first one."""
    times: Times
    code: NDArray[np.int8]

    @classmethod
    def of(cls, occurrences: Occurrences, inside: _Inside) -> _Columns:
        """Let what stands for the ops of a segment come as often as the segment."""
        at, count = occurrences.begins[:, None], len(occurrences.begins)
        times = inside.times
        start, end, arrival = ((at + column).ravel() for column in (times.start, times.end, times.arrival))
        return cls(
            (occurrences.firsts[:, None] + inside.begins).ravel(),
            Times(start, end, arrival, np.tile(times.share, count)),
            np.tile(inside.code, count),
        )

    @classmethod
    def joined(cls, several: Sequence[_Columns]) -> _Columns:
        """Put all into program order."""
        if len(several) == 1:
            return several[0]
        ops = np.concatenate([each.op for each in several])
        order = np.argsort(ops, kind="stable")  # each has its own in order
        code = np.concatenate([each.code for each in several])
        return cls(ops[order], Times.joined([each.times for each in several])[order], code[order])


@dataclass(frozen=True)
class _Inside:
    """A segment whose ops are put together."""

    begins: Ints
    """Place of the first op of each."""
    times: Times
    """From the segment's begin."""
    code: NDArray[np.int8]


class _Merged:
    """Segments whose ops are put together, pass by pass, each once: stages that do the same share them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes, bytes], _Inside] = {}

    def of(self, segment: Segment, template: Ints, stretch: Ints) -> _Inside:
        """Put the ops of each pass in a segment together: as one that computes at its end for as long as all of them.

        A pass is told by its `template`, those of no pass have a negative one, and by the `stretch` of its names.
        """
        is_pass = template >= 0
        same = is_pass[1:] & (template[1:] == template[:-1]) & (stretch[1:] == stretch[:-1])
        key = (id(segment), is_pass.tobytes(), same.tobytes())
        if key not in self._known:
            self._known[key] = self._together(segment, is_pass, np.flatnonzero(np.append(True, ~same)))
        return self._known[key]

    @staticmethod
    def _together(segment: Segment, is_pass: NDArray[np.bool_], begins: Ints) -> _Inside:
        times = segment.times
        left = np.where(segment.code == START, times.arrival, times.end)
        arrival = np.minimum.reduceat(times.arrival, begins)
        end = np.maximum.reduceat(left, begins)
        computing = np.add.reduceat(np.where(segment.code == COMPUTE, times.end - times.start, 0.0), begins)
        whole = is_pass[begins]
        merged = Times(
            np.where(whole, end - computing, times.start[begins]),
            np.where(whole, end, times.end[begins]),
            arrival,
            times.share[begins],
        )
        return _Inside(begins, merged, np.where(whole, COMPUTE, segment.code[begins]).astype(np.int8))
