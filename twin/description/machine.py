"""A machine: devices, the links inside a node, NICs, the network between nodes, the library.

A machine is data: one YAML file in `topologies/`, every number a `Parameter` with its kind
and source. Devices and collective libraries that several machines share are files of their
own (`topologies/devices`, `topologies/libraries`) named by the machine.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from twin.description.device import Device
from twin.description.host import Disk, Host
from twin.description.library import Library
from twin.description.parameter import Counted, Parameter
from twin.description.reliability import Reliability
from twin.description.spec import Spec

Count = Annotated[int, Field(gt=0, le=10**7, strict=True)]
Index = Annotated[int, Field(ge=0, strict=True)]


class Link(Spec):
    """A direct link between two devices of a node."""

    devices: tuple[Index, Index]
    """The two device indices."""
    bandwidth_bytes_per_second: Parameter
    """Peak rate per direction, all lanes together."""


class Fabric(Spec):
    """The network inside a node.

    Either `links` (a graph; devices without a link are routed through others) or `port`
    (a switch: every device can send and receive at the port's rate to any other).
    """

    links: tuple[Link, ...] = ()
    port_bandwidth_bytes_per_second: Parameter | None = None
    """Of a switch: what every device can send and receive to any other."""
    port_carries_nics: StrictBool = False
    """True if a port is its device's only way out, as over PCIe: what goes to other nodes crosses it too."""
    efficiency: Parameter
    """Share of the peak link rate that a collective's copy kernels reach."""
    latency_seconds: Parameter
    """One hop between two devices of the node, hardware only."""
    rings: tuple[tuple[Index, ...], ...] = ()
    """Rings over all devices that the library uses, if it is known to use particular ones."""

    @model_validator(mode="after")
    def _has_a_port(self) -> Self:
        if self.port_carries_nics and self.port_bandwidth_bytes_per_second is None:
            raise ValueError("port_carries_nics: is about ports; give port_bandwidth, or leave it out")
        return self


class Nic(Spec):
    """Network interfaces of a node."""

    devices: tuple[tuple[Index, ...], ...]
    """For each NIC (or each `count` of them) the devices it serves."""
    bandwidth_bytes_per_second: Parameter
    """Peak rate of one NIC per direction."""
    efficiency: Parameter
    """Share of the peak that large messages reach."""
    latency_seconds: Parameter
    """One-way, smallest message, device memory to device memory, same switch."""
    count: Counted | None = None
    """NICs that serve each of these sets of devices side by side, one if absent; collectives use all of them, as a
    library spreads its channels."""

    @property
    def peak_bytes_per_second(self) -> float:
        """Peak rate of all NICs of one set of devices, per direction."""
        return (1 if self.count is None else self.count) * self.bandwidth_bytes_per_second

    @property
    def rate_bytes_per_second(self) -> float:
        """What large messages reach of that."""
        return self.peak_bytes_per_second * self.efficiency

    def left_with_one_slow(self, share: float) -> float:
        """Return the share of a set's rate that is left where one of its NICs has this share of its own."""
        return 1.0 - (1.0 - share) / (1 if self.count is None else self.count)

    def slow_one(self, left: float) -> float:
        """Return the share of its own rate that one has where this share of its set's is left; below 0: several are."""
        return 1.0 - (1.0 - left) * (1 if self.count is None else self.count)


class HostLink(Spec):
    """The way between a device and its host's memory, of each device alone."""

    bandwidth_bytes_per_second: Parameter
    """Per direction, for large copies from pinned memory; to the device, where that from it has a number of its own."""
    down_bandwidth_bytes_per_second: Parameter | None = None
    """From the device to the host, where it differs."""
    latency_seconds: Parameter
    """Of starting one copy."""


class Network(Spec):
    """Switches between nodes: a dragonfly, or one flat switch if `group_nodes` is absent."""

    nodes_per_switch: Counted
    """Number of nodes that share a first-level switch (or set of rails)."""
    switch_latency_seconds: Parameter
    """Added for each further switch on the way."""
    group_nodes: Counted | None = None
    """Nodes in one dragonfly group."""
    group_bandwidth_bytes_per_second: Parameter | None = None
    """All global links out of one group together, per direction."""
    group_latency_seconds: Parameter | None = None
    """Added for a hop that leaves the group."""


MAX_DEVIATION = 2.0
"""Of the logarithm of a time; beyond it the mean is made by a few draws."""


class Variation(Spec):
    """Differences between equal devices, and what running things at once costs them."""

    device_speed_spread: Parameter
    """(fastest − slowest) / fastest over the devices of the machine, GEMM speed."""
    compute_slowdown: Parameter
    """Relative lengthening of compute while a collective runs beside it, in jobs of one node."""
    slowdown_between_nodes_share: Parameter | None = None
    """Share of it in jobs of several nodes, whose collectives are given fewer of a device's units; all if absent."""
    collective_slowdown: Parameter
    """Relative lengthening of a collective's transfer while one of its members computes."""
    compute_jitter: Parameter | None = None
    """Standard deviation of the logarithm of an op's time on one device, one run to the next; none if
    absent. Used by the all-ranks engine only."""
    network_noise: Parameter
    """Standard deviation of the logarithm of a collective's time, one run to the next. Used by the
    all-ranks engine only."""

    @model_validator(mode="after")
    def _is_small(self) -> Self:
        for name in ("compute_jitter", "network_noise"):
            value = getattr(self, name)
            if value is not None and value > MAX_DEVIATION:
                raise ValueError(f"{name}: {value:g} is a deviation of a logarithm; at most {MAX_DEVIATION:g}")
        return self

    def slowdown_on(self, nodes: int) -> Parameter:
        """Return how much longer compute takes beside a collective in a job of so many nodes."""
        slowdown, share = self.compute_slowdown, self.slowdown_between_nodes_share
        if nodes == 1 or share is None:
            return slowdown
        return Parameter(
            slowdown * share, "assumed" if "assumed" in (slowdown.kind, share.kind) else share.kind, share.source
        )

    def slowed_by(self, slowdown: float, source: str) -> Variation:
        """Return the same with another slowdown of compute, on however many nodes."""
        given = Parameter(slowdown, "assumed", source)
        return self.model_copy(update={"compute_slowdown": given, "slowdown_between_nodes_share": None})

    def least_slowed(self) -> Variation:
        """Return the same with the least slowdown of compute that a job may have, whatever its nodes."""
        return self.slowed_by(min(self.slowdown_on(1), self.slowdown_on(2)), "the least")


class Cores(Spec):
    """CPU cores that ranks share: several ranks compute on fewer cores, and their collectives too."""

    count: Parameter
    """Cores, or as many as keep up with so many at work."""
    shared_by: Literal["node", "machine"]
    """True if the ranks of a node share them, or all ranks: a test bed of many nodes on one host."""
    turn_seconds: Parameter | None = None
    """How long a rank at work keeps a core before another gets its turn; None: all share it at once."""


class RankingEntry(Spec):
    """Measured ring bandwidth of groups inside a node."""

    inner: Count
    """Product of the sizes of the axes inside."""
    size: Count
    """Size of the group."""
    bandwidth_bytes_per_second: Parameter
    """What a ring of it reached."""


class Ranking(Spec):
    """Bandwidths that the authors of the 4D algorithm ranked grids with on this machine."""

    inside: tuple[RankingEntry, ...]
    """Groups that fit into a node, all of them communicating at once."""
    between_bytes_per_second: Parameter
    """All groups that cross a node's border together."""


MAX_LINKED = 8


class Machine(Spec):
    """One machine. Read it with `twin.description.load.load_machine`."""

    schema_version: Literal[1] = Field(alias="schema")
    """Version of the format of machine files."""
    name: str
    """The word for it in job files."""
    title: str
    """Name for people."""
    caveat: str = ""
    """What a user must know before trusting predictions for this machine; printed with them."""
    sources: dict[str, str]
    """Short name → address or document. Every parameter's `source` starts with one of them."""
    nodes: Counted
    """Number of such nodes in the machine."""
    devices_per_node: Counted
    """Ranks that a node has room for."""
    device: Device
    fabric: Fabric
    nic: Nic
    network: Network
    library: str
    """Default collective library; a key of `libraries`."""
    libraries: dict[str, Library]
    variation: Variation
    host_link: HostLink | None = None
    """For jobs that copy between devices and hosts; the rate of `reliability.host_copy` if absent."""
    host: Host | None = None
    """For jobs that keep or update parts of their state in the host's memory."""
    disk: Disk | None = None
    """Drives of each node, for jobs that keep parts of their state there."""
    cores: Cores | None = None
    """Absent where every rank has a device of its own."""
    reliability: Reliability | None = None
    """For long runs: what fails how often, and what it takes to go on."""
    ranking: Ranking | None = None
    """For the published communication model only; never used to predict a time."""

    @property
    def host_copy_bytes_per_second(self) -> Parameter | None:
        """What a device's copies to and from its host reach: its link's, or what saving checkpoints counts with."""
        if self.host_link is not None:
            return self.host_link.bandwidth_bytes_per_second
        return self.reliability.host_copy_bytes_per_second if self.reliability is not None else None

    @property
    def caveats(self) -> str:
        """The caveat of the machine, then that of its device."""
        of_device = f"{self.device.name}: {self.device.caveat}" if self.device.caveat else ""
        return " ".join(filter(None, (self.caveat, of_device)))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[str] = []
        for link in self.fabric.links:
            problems += [
                f"fabric.links: device {d} of {list(link.devices)}; devices are 0 to {self.devices_per_node - 1}"
                for d in link.devices
                if d >= self.devices_per_node
            ]
            if link.devices[0] == link.devices[1]:
                problems.append(f"fabric.links: {list(link.devices)} links a device to itself")
        switched = self.fabric.port_bandwidth_bytes_per_second is not None
        if bool(self.fabric.links) == switched and self.devices_per_node > 1:
            problems.append("fabric: give either links (a graph) or port_bandwidth (a switch)")
        if self.fabric.links and self.devices_per_node > MAX_LINKED:
            problems.append(
                f"fabric.links: paths through more than {MAX_LINKED} linked devices are not searched; "
                "describe the node by port_bandwidth"
            )
        elif self.fabric.links and not self._connected():
            problems.append("fabric.links: the links do not connect all devices of the node; add the missing ones")
        for number, devices in enumerate(self.nic.devices):
            if not devices:
                problems.append(f"nic.devices.{number}: serves no device; leave it out")
        served = sorted(d for devices in self.nic.devices for d in devices)
        if served != list(range(self.devices_per_node)):
            problems.append(
                f"nic.devices: each of the {self.devices_per_node} devices must be served by "
                f"exactly one NIC; the list serves {served}"
            )
        for ring in self.fabric.rings:
            if sorted(ring) != list(range(self.devices_per_node)):
                problems.append(f"fabric.rings: {list(ring)} does not visit every device once")
        if self.library not in self.libraries:
            problems.append(f"library: {self.library!r} is not one of {', '.join(self.libraries)}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _connected(self) -> bool:
        reached, frontier = {0}, [0]
        while frontier:
            device = frontier.pop()
            for link in self.fabric.links:
                if device in link.devices:
                    new = set(link.devices) - reached
                    reached |= new
                    frontier += new
        return len(reached) >= self.devices_per_node

    def nic_of(self, device: int) -> int:
        """Return the index of the NIC that serves a device of the node."""
        return next(i for i, devices in enumerate(self.nic.devices) if device in devices)
