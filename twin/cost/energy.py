"""Energy of a step on devices of which only two numbers are known: idle and busy power, nothing else of the machine.

A device draws its busy power while it computes and its idle power otherwise. Host, network,
cooling and conversion are not included. Where watts by kind of work are known see `twin.engine.energy`.
"""

from __future__ import annotations

from twin.description.device import Device


def step_joules(device: Device, ranks: int, step_seconds: float, compute_seconds: float) -> float:
    """Return the joules of all devices together for one step."""
    active = (device.busy_watts - device.idle_watts) * compute_seconds
    return ranks * (device.idle_watts * step_seconds + active)
