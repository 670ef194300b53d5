"""Energy of a step on both sides: what the twin says that devices draw, and what their counters counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

LARGEST_JOULES = 1e18


@dataclass(frozen=True)
class ComparedEnergy:
    """Joules of all devices for a step: of the measured run the mean over its traced steps."""

    predicted_joules: float
    measured_joules: float
    counter: str
    """What counted them."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_joules / self.measured_joules - 1.0


def energy_of(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> ComparedEnergy | None:
    """Read it from two manifests, which may be strangers'; None where one does not say it, or not of the devices."""
    first = _below(predicted, "figures", "energy_joules")
    if first is None:
        first = _joules_of_devices(predicted)
    second, energy = _joules_of_devices(measured), measured.get("energy")
    if first is None or second is None or not isinstance(energy, Mapping):
        return None
    return ComparedEnergy(first, second, str(energy.get("counter"))[:40])


def _joules_of_devices(manifest: Mapping[str, Any]) -> float | None:
    energy = manifest.get("energy")
    if not isinstance(energy, Mapping) or energy.get("boundary") != "device":
        return None
    return _below(manifest, "energy", "joules_per_step")


def _below(manifest: Mapping[str, Any], part: str, key: str) -> float | None:
    """Return a number above 0 that a part of a manifest has."""
    found = manifest.get(part)
    value = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) and 0 < value <= LARGEST_JOULES else None
