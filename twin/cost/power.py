"""Watts of ops: what each adds to what a device draws that waits, and the clock that a cap leaves.

An op's watts are constant while it runs. Products add what their units and the memory that they use draw, other
kernels less of the units and more of the memory, collectives and copies what links draw at full rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twin.description.device import Device
from twin.description.power import Power
from twin.schedule.kernels import Kernel, Memory

LOWEST_CLOCK = 0.1
"""Share of the full clock that no cap goes below."""
STEPS = 60
"""Halvings of the clock's interval: more than a double's digits."""


def follows_clock(kernel: Kernel) -> bool:
    """Tell whether a kernel's time goes with the clock: products do, what memory bounds does not."""
    return not isinstance(kernel, Memory)


def memory_watts(device: Device, power: Power, kernel: Kernel, seconds: float) -> float:
    """Return what the memory draws for a kernel that takes so long."""
    moved = kernel.bytes if isinstance(kernel, Memory) else _moved(kernel)
    share = moved / (seconds * device.memory_bandwidth_bytes_per_second) if seconds > 0.0 else 0.0
    return power.memory_watts * min(share, 1.0)


def _moved(kernel: Kernel) -> float:
    return float(getattr(kernel, "moved_bytes", kernel.bytes))


def unit_watts(power: Power, kernel: Kernel, clock: float = 1.0) -> float:
    """Return what the units draw for a kernel at a clock."""
    full = power.products_watts if follows_clock(kernel) else power.others_watts
    return full * power.clocked(clock)


@dataclass(frozen=True)
class Work:
    """A kernel's part of a step: seconds at full clock, and watts of its units and of the memory."""

    seconds: float
    unit_watts: float
    memory_watts: float
    follows_clock: bool


def mean_watts(power: Power, work: Sequence[Work], clock: float = 1.0) -> float:
    """Return the mean watts of a device that does all of this, one after the other, at a clock."""
    joules = total = 0.0
    for each in work:
        slower = 1.0 / clock if each.follows_clock else 1.0
        seconds = each.seconds * slower
        # the bytes that a slower kernel moves take as much energy as before
        joules += seconds * (power.context_watts + each.unit_watts * power.clocked(clock))
        joules += each.seconds * each.memory_watts
        total += seconds
    return joules / total if total > 0.0 else float(power.context_watts)


def capped_clock(power: Power, work: Sequence[Work], cap_watts: float) -> float:
    """Return the highest clock, as a share of the full one, at which the mean watts while computing keep a cap.

    A cap is held on the mean of some tenths of a second, far longer than a kernel. Where even the lowest clock draws
    more that clock is returned; what the device does then is not modelled, and the engine refuses such a cap.
    """
    if mean_watts(power, work) <= cap_watts:
        return 1.0
    low, high = LOWEST_CLOCK, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if mean_watts(power, work, middle) <= cap_watts:
            low = middle
        else:
            high = middle
    return low
