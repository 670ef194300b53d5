"""A collective library (NCCL, RCCL, PCCL, gloo): the constants of its algorithms.

A library is data: one YAML file in `topologies/libraries/`. Its numbers say what its software
adds to the hardware: how long a step takes besides the wire, which share of the links its
copy kernels keep busy, and in which pieces it pipelines. Which algorithm runs is decided in
`twin.cost.algorithms`, from these numbers and from the placement of the group.

* A *step* moves one piece from each member to the next one; a ring over p members takes p−1
  steps for an all-gather or a reduce-scatter and 2(p−1) for an all-reduce.
* A *hop* is the way of one piece from a member to the next: inside a node, or over the network.
* *Protocols*: LL and LL128 put flags between the data (short hops, less bandwidth), Simple
  synchronises once per piece (long hops, full bandwidth).
"""

from __future__ import annotations

from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from twin.description.parameter import Counted, Parameter
from twin.description.problems import DescriptionError, from_pydantic
from twin.description.spec import Spec

CollectiveKind = Literal[
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "broadcast",
    "all_to_all",
    "shift",
    "send",
    "receive",
    "exchange",
    "to_host",
    "to_device",
    "cast_to_host",
    "cast_to_device",
    "host_update",
    "disk_read",
    "disk_write",
    "disk_to_device",
    "device_to_disk",
]
"""What a stream other than compute can carry: collectives, `shift` being a message from each to the next one in a ring;
messages between two, `exchange` being one each way at once; copies between a device and its host, `cast_` those that
change the type of numbers on the host; an update of numbers in the host's memory by its cores; drives, and copies
through the host's memory between them and devices."""
MEASURED_KINDS: dict[CollectiveKind, Literal["all_gather", "reduce_scatter", "all_reduce"]] = {
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
}
"""Whose constants a kind has; all others move data as an all-gather does, without adding."""
ProtocolName = Literal["LL", "LL128", "Simple"]
C = TypeVar("C", bound=Spec)


class ByCollective(Spec):
    """One dimensionless number above 0 per collective."""

    all_gather: Parameter
    """Of all-gathers, and of what moves data without adding."""
    reduce_scatter: Parameter
    """Of reduce-scatters."""
    all_reduce: Parameter
    """Of all-reduces."""

    @model_validator(mode="after")
    def _above_nothing(self) -> Self:
        for name in ("all_gather", "reduce_scatter", "all_reduce"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name):g} must be more than 0")
        return self

    def of(self, kind: CollectiveKind) -> float:
        """Return the number of a collective; what adds nothing moves data as an all-gather does."""
        return float(getattr(self, MEASURED_KINDS.get(kind, "all_gather")))


class SecondsByCollective(Spec):
    """One duration per collective."""

    all_gather_seconds: Parameter
    """Of all-gathers, and of what moves data without adding."""
    reduce_scatter_seconds: Parameter
    """Of reduce-scatters."""
    all_reduce_seconds: Parameter
    """Of all-reduces."""

    def of(self, kind: CollectiveKind) -> float:
        """Return the duration of a collective; what adds nothing is treated as an all-gather."""
        return float(getattr(self, f"{MEASURED_KINDS.get(kind, 'all_gather')}_seconds"))


class Protocol(Spec):
    """The way the library hands a piece from one member to the next."""

    base_seconds: Parameter
    """Launch and first synchronisation of a collective."""
    ring_local_hop_seconds: Parameter
    """Software part of a ring hop inside a node; the fabric's latency is added."""
    ring_network_hop_seconds: Parameter
    """Software part of a ring hop between nodes; the NIC's and switches' latency is added."""
    tree_local_hop_seconds: Parameter
    """As for the ring, in the chain of a node's members below the tree."""
    tree_network_hop_seconds: Parameter
    """As for the ring, between a node and its parent in the tree."""
    local_share: Parameter
    """Share of the Simple protocol's bandwidth that is left inside a node."""
    network_share: Parameter
    """Share of the Simple protocol's bandwidth that a ring between nodes keeps."""
    tree_network_share: Parameter
    """The same for a tree, whose pieces are not cut by the number of members."""


class Ring(Spec):
    """Rings over all members, one per channel."""

    local_efficiency: ByCollective
    """Share of the fabric's usable rate that the copy kernels reach, one node."""
    network_efficiency: ByCollective
    """Share of the NICs' usable rate that is reached when the ring leaves the node."""
    network_step: SecondsByCollective
    """Least time of one Simple step of a ring that leaves the node: proxy thread, rendezvous
    and completion. It overlaps with the transfer of the piece before it."""


class Tree(Spec):
    """Double binary tree over the nodes, a chain inside each node: all-reduce only."""

    least_nodes: Counted | None = None
    """Fewest nodes over which the library takes trees, two if absent."""
    local_efficiency: Parameter
    """Share of the fabric's usable rate reached by the chains inside the nodes."""
    network_efficiency: Parameter
    """Share of the NICs' usable rate reached when two nodes take part."""
    many_nodes_efficiency: Parameter
    """The same for three nodes or more, where a node has two children."""
    shared_nic_efficiency: Parameter | None = None
    """The most of it where more devices of a node take part than it has NICs for them: trees would need
    more channels than they are given. Without it sharing costs nothing."""
    piece_bytes: Parameter
    """The pipelined pieces of a message of M bytes have √(M · piece) bytes …"""
    largest_piece_bytes: Parameter
    """… but not more than this (all channels together)."""


class InSwitch(Spec):
    """Reduction inside the node's switch (NVLS): all-reduce on one node."""

    devices: Parameter
    """Least number of members for which the library uses it."""
    base_seconds: Parameter
    """Time of the smallest all-reduce."""
    efficiency: Parameter
    """Bytes of the buffer per second, relative to the port's peak rate."""


class TwoLevel(Spec):
    """Across nodes point to point, inside nodes a ring: PCCL (arXiv 2504.18658).

    Every member of a node runs its own inter-node collective at the same time, so all NICs
    work; between nodes a ring or recursive doubling (halving), whichever is faster.
    """

    base_seconds: Parameter
    """Start of the inter-node phase."""
    network_step_seconds: Parameter
    """Software part of one point-to-point step between nodes."""
    network_efficiency: ByCollective
    """Share of the NICs' usable rate reached."""
    copy_efficiency: Parameter
    """Share of the device's memory bandwidth reached by the shuffle of the buffer."""


class Pairwise(Spec):
    """All-to-all by sends and receives. Short parts go by few of the channels: they start sooner and move slower."""

    few_channels_base_seconds: Parameter
    """Start of an all-to-all of short parts."""
    few_channels_efficiency: Parameter
    """Share of the fabric's usable rate that these reach."""
    base_seconds: Parameter
    """Start of one whose parts fill all channels."""
    local_efficiency: Parameter
    """Share of the fabric's usable rate that these reach."""
    network_message_seconds: Parameter
    """Software's time for each member of another node."""
    network_efficiency: Parameter
    """Share of the NICs' usable rate reached."""


class LocalMessages(Spec):
    """Messages inside a node. Short ones go by few channels; longer ones are given more, until all are at work."""

    few_channels_bytes_per_second: Parameter
    """Rate of what goes by few channels."""
    filling_seconds: Parameter
    """What has more channels takes no longer than this, until all are at work."""
    efficiency: Parameter
    """Share of the fabric's usable rate that all channels reach."""

    def seconds(self, bytes_: float, rate: float) -> float:
        """Return how long a message takes over a way of so many usable bytes per second."""
        few = bytes_ / min(float(self.few_channels_bytes_per_second), rate)
        return max(bytes_ / (rate * self.efficiency), min(few, float(self.filling_seconds)))


class Direct(Spec):
    """Direct exchanges (all-to-all): every member sends each other one its part at once.

    What the runtime does on gloo: for reduce-scatters always, for all-gathers of two members or of few
    bytes, and for small all-reduces of more than two members (each then sends its whole buffer).
    """

    base_seconds: Parameter
    """Start of an exchange."""
    message_seconds: Parameter
    """Time for each further member that there is to exchange with."""
    network_message_seconds: Parameter
    """The same for one on another node."""
    network_efficiency: ByCollective
    """Share of the NICs' usable rate reached."""
    local_efficiency: ByCollective
    """Share of the fabric's usable rate reached inside a node."""
    largest_bytes: Parameter
    """Larger all-reduces, and all-gathers of more than two members, are the library's own."""


class HostWork(Spec):
    """What collectives cost CPU cores, where these move the data."""

    call_seconds: Parameter | None = None
    """Time of a core that each member spends on a call, besides its messages: threads that wake. None: no time."""
    message_seconds: Parameter
    """Time of a core for each message that a member sends."""
    exchange_call_seconds: Parameter | None = None
    """As `call_seconds`, of what software posts message by message: messages, shifts of more than two, and exchanges
    between nodes or of many bytes that all are sent alike (`twin.cost.collective_options.posted`). None: the same."""
    exchange_message_seconds: Parameter | None = None
    """As `message_seconds`, of these; None: the same."""
    threads: Counted | None = None
    """Collectives of one communicator, exchanges included, that run at once where ranks share cores; None: one after
    the other."""
    local_bytes_per_second: Parameter
    """Bytes that a core moves within its node: sends one member's, receives another's."""
    network_bytes_per_second: Parameter
    """The same for bytes that leave the node."""
    reduce_bytes_per_second: Parameter
    """Bytes received that a core adds to its own."""
    effort: ByCollective | None = None
    """Time of a core for a byte moved, relative to an all-reduce's; None: as long."""

    def posting_seconds(self, messages: int, *, exchange: bool) -> float:
        """Return the time of a core for a call with so many messages, whatever they carry."""
        call, message = self.call_seconds, self.message_seconds
        if exchange and self.exchange_call_seconds is not None:
            call = self.exchange_call_seconds
        if exchange and self.exchange_message_seconds is not None:
            message = self.exchange_message_seconds
        return float((0.0 if call is None else call) + messages * message)


class Library(Spec):
    """One collective library as configured on a machine."""

    name: str
    """Name of the file in `topologies/libraries`."""
    title: str
    """Name for people."""
    sources: dict[str, str]
    """Short name → address or document."""
    protocols: dict[ProtocolName, Protocol]
    """Protocols for one node and for groups that leave the node; the fastest is used."""
    network_protocols: tuple[ProtocolName, ...] = Field(min_length=1)
    """Those of them that the library uses across nodes."""
    ring: Ring
    message_efficiency: Parameter | None = None
    """Share of a NIC's rate at which one rank's messages to another node travel, which go by fewer channels than a
    ring's; that of ring all-gathers where it was not measured."""
    few_channel_messages: bool = False
    """Whether one rank's messages to another node go by one or two channels, which are a device's units: what it
    computes meanwhile is then not slowed."""
    nic_share: Parameter | None = None
    """Most of a NIC's usable rate that several groups of ranks reach through it together, where software of the node
    moves their messages, as over TCP; all of it if absent."""
    tree: Tree | None = None
    in_switch: InSwitch | None = None
    two_level: TwoLevel | None = None
    local_messages: LocalMessages | None = None
    """Of messages inside a node; without it they have the constants of rings."""
    pairwise: Pairwise | None = None
    """Of all-to-alls; without it they have the constants of rings."""
    direct: Direct | None = None
    host_work: HostWork | None = None
    algorithms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Constants of algorithms that have no key here, by the name they are registered under; each
    algorithm reads its own (`constants`)."""

    def local_message_seconds(self, bytes_: float, rate: float, protocol: Protocol) -> float:
        """Return how long a message inside a node takes over a way of so many usable bytes per second."""
        if self.local_messages is not None:
            return self.local_messages.seconds(bytes_, rate)
        return bytes_ / (rate * self.ring.local_efficiency.of("send") * protocol.local_share)

    @property
    def message_share(self) -> float:
        """Share of a NIC's rate that messages between nodes reach."""
        return self.ring.network_efficiency.of("send") if self.message_efficiency is None else self.message_efficiency

    def constants(self, name: str, form: type[C]) -> C | None:
        """Return the constants of a registered algorithm, read as `form`; None if this library has none for it.

        Raises DescriptionError for what is wrong with them.
        """
        raw = self.algorithms.get(name)
        if raw is None:
            return None
        try:
            return form.model_validate(raw)
        except ValidationError as error:
            path = f"machine.libraries.{self.name}.algorithms.{name}"
            raise DescriptionError(from_pydantic(error, form, path)) from None

    @model_validator(mode="after")
    def _protocols_known(self) -> Self:
        for name in self.network_protocols:
            if name not in self.protocols:
                raise ValueError(
                    f"network_protocols: {name} has no numbers under protocols, which has {', '.join(self.protocols)}"
                )
        return self
