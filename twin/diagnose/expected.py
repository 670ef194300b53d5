"""What the twin says that a healthy run takes, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from twin.diagnose.observed import Floats, Observed
from twin.engine.program import COMPUTE, START
from twin.engine.simulation import Simulation
from twin.schedule.ops import axis_of


@dataclass(frozen=True)
class Expected:
    """One step. Seconds, (ranks,)."""

    step_seconds: float
    compute: Floats
    transfer: Mapping[str, Floats]


def expected(simulation: Simulation) -> Expected:
    """Sum up a simulated step as `Observed` does measured ones."""
    program, line = simulation.program, simulation.timeline
    code = np.array(program.code)
    took = line.end - line.start
    of_rank = simulation.partition.rank_class
    axes: dict[str, list[int]] = {}
    for op in np.flatnonzero(code == START).tolist():
        axes.setdefault(axis_of(program.calls[program.target[op]][0]), []).append(op)
    return Expected(
        simulation.step_seconds,
        took[:, code == COMPUTE].sum(axis=1)[of_rank],
        {axis: took[:, ops].sum(axis=1)[of_rank] for axis, ops in axes.items()},
    )


def from_reference(reference: Observed) -> Expected:
    """Expect what an earlier run on the same ranks took."""
    return Expected(
        float(np.median(reference.step_seconds)),
        np.median(reference.compute, axis=0),
        {axis: np.median(took, axis=0) for axis, took in reference.transfer.items()},
    )
