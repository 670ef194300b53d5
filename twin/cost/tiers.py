"""What a rank's own work beyond its device costs: copies to and from the host, updates by the CPU, drives.

Alone it takes the time of its narrowest part. What several ranks share is loaded: the memory of the socket that the
device is at, and the drives of the node. The bytes of an op are those that

* `to_host`, `to_device`: cross the link, from or to pinned memory;
* `cast_to_host`, `cast_to_device`: cross the link, with a change of type on the host (`CAST_TRAFFIC`);
* `host_update`: the CPU reads and writes;
* `disk_read`, `disk_write`: are read or written.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.cost.collective_options import NodeUse
from twin.description.host import Disk, Host
from twin.description.library import CollectiveKind
from twin.description.machine import Machine
from twin.description.problems import fail

TIER_KINDS: frozenset[CollectiveKind] = frozenset(
    ("to_host", "to_device", "cast_to_host", "cast_to_device", "host_update", "disk_read", "disk_write")
)
TIER_RESOURCES = ("memory", "read", "write")
"""What ranks of a node share of these: a socket's memory, drives in each direction."""
CAST_TRAFFIC = 7.0
"""Bytes that the host's memory moves for each byte of a copy of 2-byte numbers that become 4-byte numbers there, or were:
a new page is cleared, its numbers are written and read, the wide ones are written or read (2 for each), and the driver's
pinned buffer is written and read."""


@dataclass(frozen=True, slots=True)
class TierCost:
    """Time of one op alone, and what it loads of the node."""

    startup_seconds: float
    transfer_seconds: float
    uses: tuple[NodeUse, ...]


def tier_cost(machine: Machine, kind: CollectiveKind, bytes_: float, device: int) -> TierCost:
    """Price an op of the rank on a device of its node; raises DescriptionError if the machine does not say enough."""
    if kind in ("to_host", "to_device"):
        return _copy(machine, kind, bytes_, device)
    if kind in ("disk_read", "disk_write"):
        return _disk(machine, kind, bytes_, device)
    host = _host(machine)
    if kind == "host_update":
        cores = float(host.cores) / machine.devices_per_node
        rate = min(host.domain_bytes_per_second, cores * host.core_bandwidth_bytes_per_second)
        return TierCost(0.0, bytes_ / rate, _memory(machine, bytes_, device))
    rate = host.converting_down_bytes_per_second if kind == "cast_to_host" else host.converting_up_bytes_per_second
    return TierCost(_latency(machine), float(bytes_ / rate), _memory(machine, CAST_TRAFFIC * bytes_, device))


def tier_capacity(machine: Machine, resource: str) -> float:
    """Return what a socket's memory, or a node's drives, carry per second, in bytes."""
    if resource == "memory":
        return float("inf") if machine.host is None else machine.host.domain_bytes_per_second
    if machine.disk is None:
        return float("inf")
    one = machine.disk.read_bytes_per_second if resource == "read" else machine.disk.write_bytes_per_second
    return float(machine.disk.drives * one)


def _copy(machine: Machine, kind: CollectiveKind, bytes_: float, device: int) -> TierCost:
    rate, link = machine.host_copy_bytes_per_second, machine.host_link
    if rate is None:
        remedy = "is missing: give its bandwidth and latency, for the job copies between devices and hosts"
        raise fail("machine.host_link", remedy)
    if kind == "to_host" and link is not None and link.down_bandwidth_bytes_per_second is not None:
        rate = link.down_bandwidth_bytes_per_second
    uses = () if machine.host is None else _memory(machine, bytes_, device)
    return TierCost(_latency(machine), float(bytes_ / rate), uses)


def _disk(machine: Machine, kind: CollectiveKind, bytes_: float, device: int) -> TierCost:
    disk = _drives(machine)
    resource = "read" if kind == "disk_read" else "write"
    seconds = bytes_ / tier_capacity(machine, resource)
    uses = (NodeUse(resource, 0, bytes_), *_memory(machine, bytes_, device))
    return TierCost(float(disk.latency_seconds), seconds, uses)


def _memory(machine: Machine, bytes_: float, device: int) -> tuple[NodeUse, ...]:
    if machine.host is None:
        return ()
    return (NodeUse("memory", machine.host.domain_of(device, machine.devices_per_node), bytes_),)


def _latency(machine: Machine) -> float:
    return 0.0 if machine.host_link is None else float(machine.host_link.latency_seconds)


def _host(machine: Machine) -> Host:
    if machine.host is None:
        raise fail("machine.host", f"is missing: {machine.name} does not describe its host's memory and cores")
    return machine.host


def _drives(machine: Machine) -> Disk:
    if machine.disk is None:
        raise fail("machine.disk", f"is missing: {machine.name} does not describe drives of its nodes")
    return machine.disk
