"""Energy of a step: idle and active power of the devices, nothing else of the machine.

A device draws its busy power while it computes and its idle power otherwise. Host, network,
cooling and conversion are not included.
"""

from __future__ import annotations

from twin.description.device import Device


def step_joules(device: Device, ranks: int, step_seconds: float, compute_seconds: float) -> float:
    """Return the joules of all devices together for one step."""
    active = (device.busy_watts - device.idle_watts) * compute_seconds
    return ranks * (device.idle_watts * step_seconds + active)
