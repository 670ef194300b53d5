"""Devices of one kind differ in speed, ops differ from run to run, and all wait for the slowest.

The machine file gives the measured spread over all its devices: (fastest − slowest) / fastest.
Taking speeds as normally distributed, the spread over N devices is 2·E_N standard deviations,
where E_N is the expected largest of N standard normal values; the slowest of n devices is then
expected E_n standard deviations below the mean, which is where GEMM rates are measured.

The all-ranks engine draws every device's speed, and for every op a factor: log-normal with mean 1
and the deviations of `variation.compute_jitter` and `variation.network_noise`. The factors of an op
are a stretch of one long sequence, which begins at a place that seed and op decide: within an op
all are independent, and drawing them costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from twin.description.machine import Machine

Floats = NDArray[np.float64]
MIN_POOL = 1 << 20
SLOWEST_SPEED = 0.05
"""No device is drawn slower than this share of the mean, however wide the spread."""


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
    sigma = speed_deviation(machine)
    if sigma == 0.0:
        return 1.0
    return 1.0 / max(1.0 - sigma * expected_extreme(min(ranks, population)), math.ulp(1.0))


def speed_deviation(machine: Machine) -> float:
    """Standard deviation of device speed over the machine, relative to the mean."""
    population = machine.nodes * machine.devices_per_node
    spread = float(machine.variation.device_speed_spread)
    if spread == 0.0 or population < 2:
        return 0.0
    # spread = (mean + s·E − (mean − s·E)) / (mean + s·E) with mean 1
    return spread / (expected_extreme(population) * (2.0 - spread))


def drawn_slowness(machine: Machine, ranks: int, seed: int) -> Floats:
    """Draw for every rank how many times longer its device computes than the mean one, (ranks,)."""
    speed = 1.0 + speed_deviation(machine) * np.random.default_rng([seed, 0]).standard_normal(ranks)
    return np.asarray(1.0 / np.maximum(speed, SLOWEST_SPEED))


@dataclass(frozen=True)
class Factors:
    """Random factors with mean 1, as many as wanted for every op."""

    pool: Floats
    salt: int

    @classmethod
    def draw(cls, deviation: float, most: int, seed: int, salt: int) -> Factors | None:
        """Draw factors whose logarithm has this standard deviation; None if it is zero.

        `most` is how many one op may want.
        """
        if deviation == 0.0:
            return None
        normal = np.random.default_rng([seed, salt]).standard_normal(max(MIN_POOL, 4 * most))
        return cls(np.exp(deviation * normal - 0.5 * deviation**2), seed * 4 + salt)

    def of(self, op: int, count: int) -> Floats:
        """Return the factors of an op, (count,)."""
        begin = _scrambled(op, self.salt) % (len(self.pool) - count)
        return self.pool[begin : begin + count]


def _scrambled(op: int, salt: int) -> int:
    """Return a number that looks random, from two (the finaliser of SplitMix64, public domain)."""
    mask = (1 << 64) - 1
    x = (op * 0x9E3779B97F4A7C15 + (salt + 1) * 0xD1B54A32D192ED03) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)
