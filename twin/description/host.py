"""What lies behind the devices of a node: the host's memory and cores, and its drives.

Ranks share these. Everything that reads or writes the host's memory (copies to and from devices, updates by the
CPU, drives) shares its bandwidth; of several sockets each has a memory of its own, and devices are divided among
them in order.

* `Host`: memory, cores, and what a copy by the framework's ordinary code reaches.
* `Disk`: drives of the node, all together.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from twin.description.parameter import Counted, Parameter
from twin.description.spec import Spec


class Host(Spec):
    """Host of a node, all sockets together."""

    memory_bytes: Parameter
    """Memory of the node."""
    memory_bandwidth_bytes_per_second: Parameter
    """Peak rate of that memory, reads and writes together."""
    memory_share: Parameter
    """Share of the peak that large streams of all cores reach, as STREAM measures it."""
    cores: Counted
    """Cores of the node; ranks divide them evenly."""
    core_bandwidth_bytes_per_second: Parameter
    """What one core can read and write by itself."""
    unbound_update: Parameter | None = None
    """How many times longer updates take where the ranks of a node are not bound to cores of their own; at least 1."""
    sockets: Counted | None = None
    """Sockets, each with its own part of the memory; one if absent."""
    converting_down_bytes_per_second: Parameter
    """Rate of a copy from the device that changes the type of numbers on the host, in the device's bytes: blocking,
    through pages that are not pinned, by one thread."""
    converting_up_bytes_per_second: Parameter
    """The same of a copy to the device."""

    @model_validator(mode="after")
    def _unbound_is_no_faster(self) -> Self:
        if self.unbound_update is not None and self.unbound_update < 1:
            raise ValueError(f"unbound_update: {self.unbound_update:g} must be at least 1")
        return self

    @property
    def domains(self) -> int:
        """Number of memories that are apart."""
        return 1 if self.sockets is None else int(self.sockets)

    @property
    def domain_bytes_per_second(self) -> float:
        """What streams reach of one socket's memory."""
        return self.memory_bandwidth_bytes_per_second * self.memory_share / self.domains

    def domain_of(self, device: int, devices: int) -> int:
        """Return the socket that a device of a node of so many is at.

        >>> host = Host.model_construct(sockets=Counted(2))
        >>> [host.domain_of(device, 4) for device in range(4)]
        [0, 0, 1, 1]
        """
        return device * self.domains // devices


class Disk(Spec):
    """Drives of a node, for parts of a job's state; what reads and what writes at once share their time."""

    count: Counted | None = None
    """Equal drives side by side, one if absent; files are striped over them."""
    read_bytes_per_second: Parameter
    """Sustained rate of one drive."""
    write_bytes_per_second: Parameter
    """Sustained rate of one drive."""
    capacity_bytes: Parameter
    """Of one drive."""
    latency_seconds: Parameter
    """Of one request."""

    @property
    def drives(self) -> int:
        """Number of drives."""
        return 1 if self.count is None else int(self.count)
