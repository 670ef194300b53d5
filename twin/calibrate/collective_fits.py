"""Which constants of which library are fitted to which measured collectives.

Fits of one library go on from each other in the order in which they stand. Rows are left out where their source shows a
fault; what is left out is in the error tables all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from twin.calibrate.collective_table import MIB, Row

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
"""Collectives that constants of rings are kept by."""


@dataclass(frozen=True)
class Constant:
    """A fitted constant: its name and the places in the library's YAML that hold it."""

    name: str
    paths: tuple[str, ...]
    upper: float = np.inf


@dataclass(frozen=True)
class Fit:
    """One library's fit: which constants to which rows."""

    machine: str
    library: str
    constants: tuple[Constant, ...]
    wanted: Callable[[Row], bool]


def _hops(names: Sequence[str]) -> tuple[Constant, ...]:
    """Per protocol: base and ring hop inside a node; the share of bandwidth but for Simple."""
    found: list[Constant] = []
    for name in names:
        found.append(Constant(f"{name} base", (f"protocols.{name}.base",)))
        if name == "LL":  # the others' hops hide behind their long start: NCCL's own values stay
            found.append(Constant(f"{name} local hop", (f"protocols.{name}.ring_local_hop",)))
        if name != "Simple":
            found.append(Constant(f"{name} local share", (f"protocols.{name}.local_share",), 1.0))
    return tuple(found)


def _each(key: str, kinds: Sequence[str], upper: float = np.inf) -> tuple[Constant, ...]:
    return tuple(Constant(f"{key} {k}", (f"ring.{key}.{k}",), upper) for k in kinds)


NODE = (*_hops(("LL", "LL128", "Simple")), *_each("local_efficiency", KINDS, 1.0))
ONE_SIZE = tuple(constant for constant in NODE if constant.name != "LL local hop")
"""Where all rows are of groups of one size a hop is not told from a start."""
IN_SWITCH = (
    Constant("in-switch base", ("in_switch.base",)),
    Constant("in-switch efficiency", ("in_switch.efficiency",), 1.0),
)
OLDER_TABLE = "bytes = total buffer"
"""In the sources of the rows that rings inside H100 nodes are fitted to; newer ones and other clusters' validate."""
MESSAGES = (
    Constant("messages, few channels", ("local_messages.few_channels",)),
    Constant("messages, filling", ("local_messages.filling",)),
    Constant("messages, efficiency", ("local_messages.efficiency",), 1.0),
)
PAIRWISE = (
    Constant("all-to-all, few channels: base", ("pairwise.few_channels_base",)),
    Constant("all-to-all, few channels: efficiency", ("pairwise.few_channels_efficiency",), 1.0),
    Constant("all-to-all base", ("pairwise.base",)),
    Constant("all-to-all efficiency", ("pairwise.local_efficiency",), 1.0),
)
TRAY = (*(constant for constant in NODE if constant.name != "LL128 local share"), *PAIRWISE)
"""Of four GPUs, which do not tell that share from the rates of rings."""
PAIRWISE_NETWORK = (
    Constant("all-to-all network message", ("pairwise.network_message",)),
    Constant("all-to-all network efficiency", ("pairwise.network_efficiency",), 1.0),
)
TREE = (
    Constant("tree many nodes", ("tree.many_nodes_efficiency",), 1.0),
    Constant("tree piece", ("tree.piece",)),
    Constant("tree largest piece", ("tree.largest_piece",)),
)


def _all(key: str, upper: float = np.inf) -> Constant:
    return Constant(f"{key}, all", tuple(f"ring.{key}.{k}" for k in KINDS), upper)


NETWORK = (
    _all("network_efficiency", 1.0),
    _all("network_step"),
    Constant("LL ring network hop", ("protocols.LL.ring_network_hop",)),
    Constant("LL ring network share", ("protocols.LL.network_share",), 1.0),
    Constant("LL tree network hop", ("protocols.LL.tree_network_hop",)),
    Constant("LL tree network share", ("protocols.LL.tree_network_share",), 1.0),
    Constant("tree two nodes", ("tree.network_efficiency",), 1.0),
    *TREE[:2],
)
"""Of rings and trees over nodes of one library."""


def _frontier(row: Row) -> bool:
    if row.table != "frontier" or row.library != "rccl":
        return False
    # Smaller all-gathers show protocol spikes of 20 to 870 ms; smaller reduce-scatters, harness.
    least = {"all_gather": 256 * MIB, "reduce_scatter": 4 * MIB, "all_reduce": 0.0, "broadcast": 0.0}
    return row.bytes >= least.get(row.kind, np.inf)


def _alps(row: Row) -> bool:
    """Leave out what the source shows as a fault: all-reduces that take up to ten times as long as larger ones."""
    spikes = MIB / 16 <= row.bytes <= 2 * MIB and 4 < row.ranks <= 32
    return row.table == "alps-gh200" and not spikes


def _polaris(row: Row) -> bool:
    """Of two settings the one that staff advise: the other trades latency for stability.

    All-reduces of 256 KiB to 16 MiB on more than two nodes show the fault of Alps (on 8 nodes 1 MiB takes 1.5 ms, and
    8 MiB 1.3), all-to-alls of 128 MiB and more on 256 nodes one of their own: nine times what the other setting takes.
    """
    late = row.kind == "all_reduce" and MIB / 4 <= row.bytes <= 16 * MIB and row.ranks > 8
    congested = row.kind == "all_to_all" and row.bytes >= 128 * MIB and row.ranks > 32
    return row.table == "polaris" and row.library == "nccl" and "setting 4" in row.note and not late and not congested


def _all_to_alls_between(machine: str, wanted: Callable[[Row], bool]) -> tuple[Fit, Fit]:
    """Fit latency to what is short and rates to what is long: between them NCCL runs by what is not modelled."""
    message, efficiency = PAIRWISE_NETWORK
    return (
        Fit(machine, "nccl", (message,), lambda r: wanted(r) and r.kind == "all_to_all" and r.bytes <= MIB / 4),
        Fit(machine, "nccl", (efficiency,), lambda r: wanted(r) and r.kind == "all_to_all" and r.bytes >= 16 * MIB),
    )


FITS = (
    Fit("dgx-a100", "nccl", (*NODE, *PAIRWISE), lambda r: r.table == "dgx-a100-node"),
    *_all_to_alls_between("dgx-a100", lambda r: r.table == "dgx-a100"),
    Fit(
        "dgx-h100",
        "nccl",
        (*NODE, *PAIRWISE),
        lambda r: r.table == "dgx-h100-node" and (OLDER_TABLE in r.source or r.kind == "all_to_all"),
    ),
    Fit("dgx-h100", "nccl", MESSAGES, lambda r: r.table == "dgx-h100-node" and r.kind == "send"),
    Fit("dgx-h100", "nccl", IN_SWITCH, lambda r: r.table == "dgx-h100-node" and r.kind == "all_reduce"),
    # from 32 MiB on: latencies are not seen
    Fit("dgx-h100", "nccl", PAIRWISE_NETWORK[1:], lambda r: r.table == "h100-8xndr" and r.kind == "all_to_all"),
    Fit(
        "dgx-2",
        "nccl",
        _each("local_efficiency", ("all_gather",), 1.0),
        lambda r: r.table == "dgx-2" and r.kind == "all_gather" and r.bytes >= 64 * MIB,
    ),
    Fit("hgx-h200", "nccl", PAIRWISE, lambda r: r.table == "dgx-h200-node" and r.kind == "all_to_all"),
    Fit("dgx-b200", "nccl", (*NODE, *IN_SWITCH, *PAIRWISE), lambda r: r.table == "dgx-b200-node"),
    Fit("gb200-nvl72", "nccl", TRAY, lambda r: r.table == "gb200-node"),
    Fit("gb300-nvl72", "nccl", TRAY, lambda r: r.table == "gb300-node"),
    Fit("gb200-nvl72", "nccl", IN_SWITCH[1:], lambda r: r.table == "gb200-nvl72" and r.group.nodes == 1),
    Fit(
        "gb200-nvl72",
        "nccl",
        (Constant("tree local", ("tree.local_efficiency",), 1.0),),
        lambda r: r.table == "gb200-nvl72" and r.group.nodes > 1,
    ),
    Fit(
        "l40s-8",
        "nccl",
        (*(c for c in ONE_SIZE if not c.name.startswith("LL128")), *PAIRWISE),  # LL128 wants NVLink
        lambda r: r.table == "l40s-node",
    ),
    Fit(
        "hgx-mi300x",
        "rccl",
        (
            *(c for c in ONE_SIZE if c.name.startswith("LL ")),
            Constant("Simple local hop", ("protocols.Simple.ring_local_hop",)),
            *_each("local_efficiency", ("all_reduce",), 1.0),
        ),
        # one process for all devices takes up to four times as long below 64 KiB
        lambda r: r.table == "mi300x-node" and "one process" not in r.note,
    ),
    Fit(
        "alps",
        "nccl",
        (
            # nothing of a node's inside: all collectives share it, and only all-reduces were measured
            *_each("network_efficiency", ("all_reduce",), 1.0),
            *_each("network_step", ("all_reduce",)),
            Constant("LL tree network hop", ("protocols.LL.tree_network_hop",)),
            Constant("LL tree network share", ("protocols.LL.tree_network_share",), 1.0),
            Constant("Simple tree network hop", ("protocols.Simple.tree_network_hop",)),
            *TREE[:2],
        ),
        _alps,
    ),
    Fit("polaris", "nccl-tcp", NETWORK, lambda r: r.library == "nccl-tcp" and r.kind != "all_to_all"),
    Fit("polaris", "nccl-tcp", PAIRWISE_NETWORK, lambda r: r.library == "nccl-tcp" and r.kind == "all_to_all"),
    Fit("polaris", "nccl", NETWORK, lambda r: _polaris(r) and r.kind != "all_to_all"),
    *_all_to_alls_between("polaris", _polaris),
    Fit(
        "perlmutter",
        "nccl",
        (
            _all("local_efficiency", 1.0),
            _all("network_efficiency", 1.0),
            _all("network_step"),
            Constant("LL network hop", ("protocols.LL.ring_network_hop",)),
            Constant("LL network share", ("protocols.LL.network_share",), 1.0),
            Constant("tree many nodes", ("tree.many_nodes_efficiency",), 1.0),
            Constant("tree piece", ("tree.piece",)),
        ),
        lambda r: (
            r.table in {"perlmutter", "perlmutter-node"}
            and r.library == "nccl"
            and (r.table == "perlmutter" or r.bytes >= 4 * MIB)
        ),
    ),
    Fit(
        "frontier",
        "rccl",
        (
            *_each("local_efficiency", KINDS, 1.0),
            Constant(  # a reduce-scatter is bound by the copy kernels before the NICs
                "network_efficiency AG, RS",
                ("ring.network_efficiency.all_gather", "ring.network_efficiency.reduce_scatter"),
                1.0,
            ),
            Constant("network_efficiency all_reduce", ("ring.network_efficiency.all_reduce",), 1.0),
            Constant("network_step all_gather", ("ring.network_step.all_gather",)),
            Constant("network_step others", ("ring.network_step.reduce_scatter", "ring.network_step.all_reduce")),
            Constant("LL ring network hop", ("protocols.LL.ring_network_hop",)),
            Constant("LL tree network hop", ("protocols.LL.tree_network_hop",)),
            Constant("LL local share", ("protocols.LL.local_share",), 1.0),
            Constant("LL network share", ("protocols.LL.network_share",), 1.0),
            Constant("LL tree network share", ("protocols.LL.tree_network_share",), 1.0),
            Constant("Simple local hop", ("protocols.Simple.ring_local_hop",)),
            Constant("tree local", ("tree.local_efficiency",), 1.0),
            *TREE,
        ),
        _frontier,
    ),
)
