"""The pipeline of a simulated step: one rank of each stage, its passes and its bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.engine.program import COMPUTE, START
from twin.engine.rows import Occurrences
from twin.engine.simulation import Part, Simulation
from twin.engine.times import Floats, Ints, Times
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
    found = []
    for stage, part in enumerate(simulation.parts):
        row = int(np.flatnonzero(part.classes == classes[chosen, stage])[0])
        found.append((stage, int(ranks[chosen, stage]), _ops(part, row)))
    return PipelineRun.of(found, simulation.step_seconds)


def _ops(part: Part, number: int) -> RankOps:
    """Columns of one class of ranks: what is known of segments is one op for each pass in them."""
    program, row = part.program, part.timeline.rows[number]
    code, which = np.asarray(program.code), np.asarray(program.ops.which)
    read = [pass_and_variable_of(op.name) for op in program.ops.distinct]
    distinct, variables = [each for each, _ in read], [variable for _, variable in read]
    known: dict[PassName, int] = {}
    template = np.array([each if isinstance(each, int) else known.setdefault(each, len(known)) for each in distinct])
    columns = _Columns(row.ops, row.times.arrival, row.times.start, row.times.end, code[row.ops])
    if row.segments:
        inside = _Inside.of(row.segments, template[which[row.once]], program.ops.stretch_of(row.once))
        columns = columns.and_those_of(inside.each_time(row.segments))
    of_op = which[columns.op]
    micro = program.ops.values_of("micro", columns.op)
    for variable in sorted(set(variables) - {"micro"}):
        named = np.array([each == variable for each in variables], dtype=bool)[of_op]
        micro = np.where(named, program.ops.values_of(variable, columns.op), micro)
    names, numbers = numbered(distinct, of_op, micro)
    return RankOps(
        names, numbers, columns.code == COMPUTE, columns.code == START, columns.arrival, columns.start, columns.end
    )


@dataclass(frozen=True)
class _Columns:
    """Ops with their times, or what stands for several."""

    op: Ints
    """Number of the op, or of the first one."""
    arrival: Floats
    start: Floats
    end: Floats
    code: NDArray[np.int8]

    def and_those_of(self, other: _Columns) -> _Columns:
        """Put both into program order."""
        several = (self, other)
        ops = np.concatenate([each.op for each in several])
        order = np.argsort(ops, kind="stable")  # what is in order is merged
        arrival, start, end, code = (
            np.concatenate([getattr(each, name) for each in several])[order]
            for name in ("arrival", "start", "end", "code")
        )
        return _Columns(ops[order], arrival, start, end, code)


@dataclass(frozen=True)
class _Inside:
    """Segments whose ops are put together pass by pass, one segment behind the other; times are from its begin."""

    columns: _Columns
    """Of each pass, or op of no pass: the first op by its place in the segment."""
    lengths: Ints
    """How many of them each segment has."""

    @classmethod
    def of(cls, segments: Sequence[Occurrences], template: Ints, stretch: Ints) -> _Inside:
        """Put the ops of each pass in a segment together: as one that computes at its end for as long as all of them.

        A pass is told by its `template`, those of no pass have a negative one, and by the `stretch` of its names.
        """
        sizes = np.array([len(each.segment.code) for each in segments])
        firsts = np.cumsum(sizes) - sizes
        times = Times.joined([each.segment.times for each in segments])
        code = np.concatenate([each.segment.code for each in segments])
        is_pass = template >= 0
        begins = np.append(True, ~is_pass[1:] | (template[1:] != template[:-1]) | (stretch[1:] != stretch[:-1]))
        begins[firsts] = True
        at = np.flatnonzero(begins)
        left = np.where(code == START, times.arrival, times.end)
        end = np.maximum.reduceat(left, at)
        computing = np.add.reduceat(np.where(code == COMPUTE, times.end - times.start, 0.0), at)
        whole = is_pass[at]
        lengths = np.add.reduceat(begins, firsts, dtype=np.int64)
        columns = _Columns(
            at - np.repeat(firsts, lengths),
            np.minimum.reduceat(times.arrival, at),
            np.where(whole, end - computing, times.start[at]),
            np.where(whole, end, times.end[at]),
            np.where(whole, COMPUTE, code[at]).astype(np.int8),
        )
        return cls(columns, lengths)

    def each_time(self, segments: Sequence[Occurrences]) -> _Columns:
        """Let what stands for the ops of these segments come as often as they do."""
        times = [len(each.begins) for each in segments]
        lengths = np.repeat(self.lengths, times)
        first = np.repeat(np.cumsum(self.lengths) - self.lengths, times)  # of each occurrence's segment
        place = np.arange(lengths.sum()) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
        begin = np.repeat(np.concatenate([each.begins for each in segments]), lengths)
        op = np.repeat(np.concatenate([each.firsts for each in segments]), lengths)
        own = self.columns
        return _Columns(
            op + own.op[place],
            begin + own.arrival[place],
            begin + own.start[place],
            begin + own.end[place],
            own.code[place],
        )
