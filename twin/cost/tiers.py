"""What a rank's own work beyond its device costs: copies to and from the host, updates by the CPU, drives.

Alone it takes the time of its narrowest part. What several ranks share is loaded: the memory of the socket that the
device is at, and the drives of the node. The bytes of an op are those that

* `to_host`, `to_device`: cross the link, from or to pinned memory;
* `cast_to_host`, `cast_to_device`: cross the link, with a change of type on the host (`CAST_TRAFFIC`);
* `host_update`: the CPU reads and writes;
* `disk_read`, `disk_write`: are read or written; what is read and what is written at once share a drive's time;
* `disk_to_device`, `device_to_disk`: are read and cross the link, or the other way round, piece by piece at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.cost.collective_options import NodeUse
from twin.description.host import Disk, Host
from twin.description.library import CollectiveKind
from twin.description.machine import Machine
from twin.description.problems import fail

DISK_KINDS: frozenset[CollectiveKind] = frozenset(("disk_read", "disk_write", "disk_to_device", "device_to_disk"))
TIER_KINDS: frozenset[CollectiveKind] = DISK_KINDS | frozenset(
    ("to_host", "to_device", "cast_to_host", "cast_to_device", "host_update")
)
TIER_RESOURCES = ("memory", "drives")
"""What ranks of a node share of these: a socket's memory, and its drives: bytes of it as they are read; of what is
written as many as could be read meanwhile."""
CAST_TRAFFIC = 7.0
"""Bytes that the host's memory moves for each byte of a copy of 2-byte numbers that become 4-byte numbers there, or
were: a new page is cleared, its numbers are written and read, the wide ones are written or read (2 for each), and the
driver's pinned buffer is written and read."""


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
    if kind in DISK_KINDS:
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
    return float("inf") if machine.disk is None else machine.disk.drives * machine.disk.read_bytes_per_second


def _copy(machine: Machine, kind: CollectiveKind, bytes_: float, device: int) -> TierCost:
    uses = () if machine.host is None else _memory(machine, bytes_, device)
    return TierCost(_latency(machine), bytes_ / host_link_rate(machine, down=kind == "to_host"), uses)


def host_link_rate(machine: Machine, *, down: bool) -> float:
    """Return the rate of the link between a device and its host, bytes per second of one direction."""
    rate, link = machine.host_copy_bytes_per_second, machine.host_link
    if rate is None:
        remedy = "is missing: give its bandwidth and latency, for the job copies between devices and hosts"
        raise fail("machine.host_link", remedy)
    if down and link is not None and link.down_bandwidth_bytes_per_second is not None:
        return float(link.down_bandwidth_bytes_per_second)
    return float(rate)


def _disk(machine: Machine, kind: CollectiveKind, bytes_: float, device: int) -> TierCost:
    disk = _drives(machine)
    writes = kind in ("disk_write", "device_to_disk")
    as_read = bytes_ * (disk.read_bytes_per_second / disk.write_bytes_per_second if writes else 1.0)
    seconds, startup, passes = as_read / tier_capacity(machine, "drives"), float(disk.latency_seconds), 1.0
    if kind in ("disk_to_device", "device_to_disk"):  # the host's memory is written and read
        seconds = max(seconds, bytes_ / host_link_rate(machine, down=writes))
        startup, passes = startup + _latency(machine), 2.0
    return TierCost(startup, seconds, (NodeUse("drives", 0, as_read), *_memory(machine, passes * bytes_, device)))


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
