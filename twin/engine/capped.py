"""What a program's kernels draw, for the clock that a power cap leaves."""

from __future__ import annotations

from twin.cost.power import Work, follows_clock, memory_watts, unit_watts
from twin.description.device import Device
from twin.description.power import Power
from twin.engine.program import COMPUTE, Program
from twin.schedule.ops import Compute


def work_of(program: Program, device: Device, power: Power) -> list[Work]:
    """Return the kernels of a program that is not slowed by a cap, one entry for those that are equal."""
    seconds: dict[int, float] = {}
    first: dict[int, float] = {}
    for which, code, amount in zip(program.ops.which, program.code, program.amount, strict=True):
        if code == COMPUTE:
            seconds[which] = seconds.get(which, 0.0) + amount
            first.setdefault(which, amount)
    found = []
    for which, total in seconds.items():
        op = program.ops.distinct[which]
        assert isinstance(op, Compute)
        moved = memory_watts(device, power, op.kernel, first[which])
        found.append(Work(total, unit_watts(power, op.kernel), moved, follows_clock(op.kernel)))
    return found
