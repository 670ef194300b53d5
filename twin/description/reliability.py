"""How often parts of a machine fail, how long it takes to go on, and where state is kept."""

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
    """How long its node is out before it can be used again."""

    @model_validator(mode="after")
    def _fails_at_times(self) -> Self:
        if self.between_seconds <= 0.0:
            raise ValueError(
                "between: must be more than 0; leave `reliability` out if nothing fails"
            )
        return self


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
    host_copy_bytes_per_second: Parameter
    """One device to its host's memory."""
