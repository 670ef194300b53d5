"""Watts of a device by what it does, and what a power cap does to its clock.

What a device draws is what its context draws, and what each part at work adds: the units, by what they compute, the
memory, the links. The units' part goes with the clock and the square of the voltage (`clocked`); a cap lowers the clock
until the mean while computing keeps it. Each device has numbers of its own, with sources: `topologies/devices`.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from twin.description.parameter import Parameter
from twin.description.spec import Spec


class Power(Spec):
    """What a device draws beyond its limit, which is `busy`."""

    context_watts: Parameter
    """With a process on it that does nothing: what a rank draws that waits."""
    products_watts: Parameter
    """Added by units that compute products at full clock."""
    others_watts: Parameter
    """Added by units in other kernels, which memory bounds, at full clock."""
    memory_watts: Parameter
    """Added by the memory at its full rate."""
    links_watts: Parameter
    """Added by links that move at full rate."""
    knee_share: Parameter
    """Share of the full clock below which the voltage stays the same."""
    voltage_ratio: Parameter
    """Voltage at full clock over that below the knee; between them it rises in proportion to the clock."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.voltage_ratio < 1:
            raise ValueError(f"voltage_ratio: {self.voltage_ratio:g} is below 1; it is the highest over the lowest")
        return self

    def clocked(self, clock: float) -> float:
        """Return the units' watts at a clock, as a share of those at full clock.

        The dynamic power of CMOS: clock times voltage squared.
        """
        lowest = 1.0 / self.voltage_ratio
        knee = float(self.knee_share)
        rise = max(0.0, clock - knee) / (1.0 - knee) if knee < 1.0 else 0.0
        voltage = lowest + (1.0 - lowest) * min(rise, 1.0)
        return clock * voltage**2


class EnergyInputs(Spec):
    """What turns joules of devices into those of a facility, into carbon and into money; none of it is assumed."""

    node_watts: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of a node besides its devices: processors, memory, NICs, fans, conversion."""
    pue: float | None = Field(default=None, ge=1, le=10, allow_inf_nan=False)
    """Power usage effectiveness: energy of the facility over that of its nodes."""
    grams_per_kwh: float | None = Field(default=None, ge=0, le=1e5, allow_inf_nan=False)
    """Carbon intensity of the electricity, g CO2e per kWh."""
    price_per_kwh: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Tariff of the electricity."""
    currency: Annotated[str, Field(min_length=1, max_length=16)] = "USD"
    """Unit of the tariff."""
