"""Devices of one kind differ in speed, and a synchronous job runs at the pace of the slowest.

The machine file gives the measured spread over all its devices: (fastest − slowest) / fastest.
Taking speeds as normally distributed, the spread over N devices is 2·E_N standard deviations,
where E_N is the expected largest of N standard normal values; the slowest of n devices is then
expected E_n standard deviations below the mean, which is where GEMM rates are measured.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from twin.description.machine import Machine


def expected_extreme(count: int) -> float:
    """Expected largest of `count` standard normal values (Blom's approximation).

    >>> round(expected_extreme(1), 3), round(expected_extreme(1000), 2)
    (0.0, 3.23)
    """
    alpha = 0.375
    return NormalDist().inv_cdf((count - alpha) / (count - 2 * alpha + 1))


def slowest_factor(machine: Machine, ranks: int) -> float:
    """How many times longer the slowest of `ranks` devices is expected to compute."""
    population = machine.nodes * machine.devices_per_node
    spread = float(machine.variation.device_speed_spread)
    if spread == 0.0 or population < 2:
        return 1.0
    # spread = (mean + s·E − (mean − s·E)) / (mean + s·E) with mean 1
    extreme = expected_extreme(population)
    sigma = spread / (extreme * (2.0 - spread))
    return 1.0 / max(1.0 - sigma * expected_extreme(min(ranks, population)), math.ulp(1.0))
