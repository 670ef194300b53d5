"""What a program's kernels draw, for the clock that a power cap leaves."""

from __future__ import annotations

import numpy as np

from twin.cost.power import Work, follows_clock, memory_watts, unit_watts
from twin.description.device import Device
from twin.description.power import Power
from twin.engine.program import Program
from twin.schedule.ops import Compute


def work_of(program: Program, device: Device, power: Power) -> list[Work]:
    """Return the kernels of a program that is not slowed by a cap, one entry for those that are equal."""
    which, distinct = np.asarray(program.ops.which), len(program.ops.distinct)
    total = np.bincount(which, weights=np.asarray(program.amount), minlength=distinct).tolist()
    return [
        Work(
            seconds, unit_watts(power, op.kernel), memory_watts(device, power, op.kernel, own), follows_clock(op.kernel)
        )
        for op, seconds, own in zip(program.ops.distinct, total, program.amounts, strict=True)
        if isinstance(op, Compute)
    ]
