"""The clock that a power cap leaves: the mean of a device that computes is at the cap, with what links draw beside it.

Kernels alone say how high the clock may be. What links draw while they run depends on when each ran, so the step is
simulated at that clock, links' watts are taken from what kernels may draw, and again, until the mean is at the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twin.cost.power import LOWEST_CLOCK, Work, capped_clock, mean_watts
from twin.description.job import Job
from twin.description.power import Power
from twin.description.problems import fail
from twin.engine.capped import work_of
from twin.engine.energy import StepEnergy
from twin.engine.program import Program
from twin.engine.simulation import Simulation

CLOSE = 1e-3
"""Of the cap and of the clock: a mean that is so close is at the cap. Watts come from fits of some percent."""
TRIES = 24
"""Two or three are enough where links draw a tenth of what kernels do; halving the clock's interval takes ten more."""
STEPS_BY_LINKS = 6
"""So many tries go by what links drew; those after them halve the interval."""


def under_cap(job: Job, programs: Sequence[Program], at: Callable[[float], Simulation]) -> Simulation:
    """Simulate a step at the clock that its job's power cap leaves: of the ranks that it leaves least.

    Args:
        job: with the cap, if it has one.
        programs: of its roles, at full clock.
        at: simulates the step at a share of the full clock.

    Raises:
        DescriptionError: for a cap that no clock keeps: the step's time under it would be that of another cap.
    """
    device, cap = job.machine.device, job.power_cap_watts
    if cap is None or device.power is None:
        return at(1.0)
    cap = float(cap)
    works = [work_of(program, device, device.power) for program in programs]
    above = clock = _clock(device.power, works, [cap] * len(works))
    below, kept = LOWEST_CLOCK, None
    for number in range(TRIES):
        found = at(clock)
        most = _most_watts(StepEnergy(found, device.power))
        closer = _clock(device.power, works, [cap - own for own in _beside(device.power, works, clock, most)])
        if max(most) <= cap * (1.0 + CLOSE):
            if clock == above or abs(closer - clock) <= CLOSE * clock:
                return found
            below, kept = clock, found
        else:
            above = clock
        if above - below <= CLOSE * below:
            break
        # where what links draw falls fast with the clock, steps by it alone go round in a circle
        clock = closer if below < closer < above and number < STEPS_BY_LINKS else (below + above) / 2
    if kept is not None:
        return kept
    lowest = at(LOWEST_CLOCK)
    if (least := max(_most_watts(StepEnergy(lowest, device.power)))) > cap:
        still = f"at {LOWEST_CLOCK:.0%} of its clock {device.name} still draws {least:.4g} W on this"
        raise fail("power_cap", f"{still}; give more than that", cap)
    return lowest


def _clock(power: Power, works: Sequence[Sequence[Work]], caps: Sequence[float]) -> float:
    """Return the highest clock at which each role's kernels draw what is left for them; the lowest, if none is."""
    return min(capped_clock(power, work, cap) for work, cap in zip(works, caps, strict=True))


def _beside(power: Power, works: Sequence[Sequence[Work]], clock: float, most: Sequence[float]) -> list[float]:
    """Return what links add to what kernels draw at a clock, where each role's ranks draw so much at most.

    Kernels that are held to the device's limit draw less than they would alone, and give nothing to others for it.
    """
    return [max(0.0, both - mean_watts(power, work, clock)) for both, work in zip(most, works, strict=True)]


def _most_watts(energy: StepEnergy) -> list[float]:
    """Return the mean of each role's ranks while they compute: of the ranks that draw most."""
    return [float(energy.active_watts_of_classes(number).max()) for number in range(len(energy.simulation.parts))]
