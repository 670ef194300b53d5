"""Energy of a step on both sides: what the twin says that devices draw, and what their counters counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = 1e18


@dataclass(frozen=True)
class ComparedEnergy:
    """Joules of all devices for a step: of the measured run the mean over its traced steps."""

    predicted_joules: float
    measured_joules: float
    counter: str
    """What counted them."""
    predicted_watts: float | None = None
    """Mean of all devices together over the predicted step; None where its length is not said."""
    measured_watts: float | None = None
    """Mean of all devices together over all that the counter covers: the traced steps and the pauses between them."""
    measured_seconds: float | None = None
    """What the measured joules cover, a step: longer than a step by its share of the pauses."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_joules / self.measured_joules - 1.0

    @property
    def error_of_watts(self) -> float | None:
        """Predicted mean power over measured, less one; None where one of them is not known."""
        if self.predicted_watts is None or self.measured_watts is None:
            return None
        return self.predicted_watts / self.measured_watts - 1.0


def energy_of(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> ComparedEnergy | None:
    """Read it from two manifests, which may be strangers'; None where one does not say it, or not of the devices."""
    first, length = (_below(predicted, "figures", key) for key in ("energy_joules", "step_seconds"))
    if first is None:
        first, length = _joules_of_devices(predicted), _seconds_of_a_step(predicted)
    second, energy = _joules_of_devices(measured), measured.get("energy")
    if first is None or second is None or not isinstance(energy, Mapping):
        return None
    covered = _seconds_of_a_step(measured)
    return ComparedEnergy(
        first,
        second,
        str(energy.get("counter"))[:40],
        predicted_watts=None if length is None else first / length,
        measured_watts=None if covered is None else second / covered,
        measured_seconds=covered,
    )


def _joules_of_devices(manifest: Mapping[str, Any]) -> float | None:
    energy = manifest.get("energy")
    if not isinstance(energy, Mapping) or energy.get("boundary") != "device":
        return None
    return _below(manifest, "energy", "joules_per_step")


def _seconds_of_a_step(manifest: Mapping[str, Any]) -> float | None:
    seconds, steps = (_below(manifest, "energy", key) for key in ("seconds", "steps"))
    return None if seconds is None or steps is None else seconds / steps


def _below(manifest: Mapping[str, Any], part: str, key: str) -> float | None:
    """Return a number above 0 that a part of a manifest has."""
    found = manifest.get(part)
    value = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 1 / LARGEST <= value <= LARGEST else None
