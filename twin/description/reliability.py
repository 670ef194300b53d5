"""Failures and slow parts of a machine: how often, how long it takes to go on, and where state is kept."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from twin.description.parameter import Parameter
from twin.description.spec import Spec


class Failures(Spec):
    """One sort of part, and how it fails: at random, whatever its age."""

    between_seconds: Parameter
    """Mean time between failures of one such part, more than 0."""
    repair_seconds: Parameter
    """Time for which its node is out before it can be used again."""

    @model_validator(mode="after")
    def _fails_at_times(self) -> Self:
        if self.between_seconds <= 0.0:
            raise ValueError("between: must be more than 0; leave `reliability` out if nothing fails")
        return self


MAX_SLOWDOWN = 1000.0
MIN_RATE = 1e-3


class SlowDevices(Spec):
    """Devices that become slow without failing: heat, power, memory that corrects itself all the time."""

    between_seconds: Parameter
    """Mean time between such beginnings of one device, more than 0."""
    slowdown: Parameter
    """Factor by which its compute takes longer meanwhile; 1 to 1000."""
    unnoticed_seconds: Parameter
    """From its beginning until it is found, and the job goes on without it."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        _happens_at_times(self.between_seconds, "slow_device")
        if not 1.0 <= self.slowdown <= MAX_SLOWDOWN:
            raise ValueError(f"slowdown: must be from 1 to {MAX_SLOWDOWN:g}")
        return self


class SlowLinks(Spec):
    """Links that flap, or run at part of their rate for a while, and get well by themselves."""

    between_seconds: Parameter
    """Mean time between such beginnings on one node, more than 0."""
    duration_seconds: Parameter
    """Mean time that one lasts."""
    rate: Parameter
    """Share of its rate that a network card has left meanwhile; 0.001 to 1."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        _happens_at_times(self.between_seconds, "slow_link")
        if not MIN_RATE <= self.rate <= 1.0:
            raise ValueError(f"rate: must be from {MIN_RATE:g} to 1")
        return self


def _happens_at_times(between_seconds: float, key: str) -> None:
    if between_seconds <= 0.0:
        raise ValueError(f"between: must be more than 0; leave `{key}` out if that never happens")


class Storage(Spec):
    """The file system that checkpoints go to."""

    write_bytes_per_second: Parameter
    """All nodes together."""
    read_bytes_per_second: Parameter
    """All nodes together."""
    node_bytes_per_second: Parameter
    """One node alone, either way."""


class Reliability(Spec):
    """What stops a run, and what it takes to go on."""

    device: Failures
    """One device, its memory included."""
    node: Failures
    """The rest of one node: host, power, network card."""
    job: Failures
    """What stops the job without losing a host (software, cables), for each node of it."""
    restart_seconds: Parameter
    """From a stop to the first step: noticing it, starting processes, joining; reading is apart."""
    storage: Storage
    slow_device: SlowDevices | None = None
    """Devices that become slow without failing; they stop nothing, but all wait for them."""
    slow_link: SlowLinks | None = None
    """Links that are slow for a while."""
    host_copy_bytes_per_second: Parameter
    """One device to its host's memory."""
