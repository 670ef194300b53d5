"""The pipeline of a simulated step: one rank of each stage, its passes and its bubbles."""

from __future__ import annotations

import numpy as np

from twin.engine.program import COMPUTE, START
from twin.engine.simulate import Part, Simulation
from twin.trace.bubbles import PipelineRun
from twin.trace.passes import RankOps, numbered, pass_of, variable_of


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


def _ops(part: Part, row: int) -> RankOps:
    """Columns of one class of ranks."""
    program, timeline = part.program, part.timeline
    which = np.asarray(program.ops.which)
    variables = [variable_of(op.name) for op in program.ops.distinct]
    micro = program.ops.values_of("micro")
    for variable in sorted(set(variables) - {"micro"}):
        named = np.array([each == variable for each in variables], dtype=bool)[which]
        micro = np.where(named, program.ops.values_of(variable), micro)
    distinct = [pass_of(op.name) for op in program.ops.distinct]
    names, number = numbered(distinct, which, micro)
    code = np.asarray(program.code)
    times = (timeline.arrival[row], timeline.start[row], timeline.end[row])
    return RankOps(names, number, code == COMPUTE, code == START, *times)
