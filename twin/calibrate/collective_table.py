"""Measured collectives: the rows of a table, each with the group it was measured on.

The CSV has the columns machine, collective, library, ranks, bytes, microseconds; rows of machines
or collectives that are not known here are left out.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twin.cost.collective import options
from twin.cost.collective_group import Group, look
from twin.cost.placement import Placement
from twin.description.library import CollectiveKind, Library
from twin.description.load import load_machine
from twin.description.machine import Machine

MIB = 2.0**20
NCCL_TESTS: dict[str, CollectiveKind] = {"alltoall": "all_to_all", "sendrecv": "send"}
"""Names of nccl-tests → kinds. In a `sendrecv` every rank sends to the next one: its slowest pair decides."""
KIND: dict[str, CollectiveKind] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    **NCCL_TESTS,
}
"""Names of the tables → kinds that constants are fitted to."""
WRAPPER, WRAPPER_SECONDS = "mpich-rccl", 17e-6
"""github ggracelii/mpich-rccl: calling RCCL through MPICH adds 15 to 20 µs to what it measures."""
TABLE_MACHINES = {
    "dgx-a100-node": "dgx-a100",
    "dgx-h100-node": "dgx-h100",
    "dgx-h200-node": "hgx-h200",
    "dgx-b200-node": "dgx-b200",
    "gb200-node": "gb200-nvl72",
    "gb200-nvl72": "gb200-nvl72",
    "dgx-a100": "dgx-a100",
    "dgx-2": "dgx-2",
    "h100-8xndr": "dgx-h100",
    "alps-gh200": "alps",
    "polaris": "polaris",
    "mi300x-node": "hgx-mi300x",
    "l40s-node": "l40s-8",
    "perlmutter-node": "perlmutter",
    "perlmutter": "perlmutter",
    "frontier": "frontier",
    "gb300-node": "gb300-nvl72",
    "gcp-a4x-max-gb300": "gb300-nvl72",
    "gcp-a3mega-h100": "gcp-a3-mega",
    "azure-nd-h100-v5": "azure-nd-h100-v5",
    "aws-p4d-a100": "aws-p4d",
    "aws-p5-h100": "aws-p5",
    "aws-p5en-h200": "aws-p5en",
    "aws-p6-b200": "aws-p6-b200",
    "oci-a100-40gb": "oci-a100",
    "coreweave-h100": "dgx-h100",
}
"""Names of the tables → names of machines."""
FITTED = (
    *("dgx-a100-node", "dgx-a100", "dgx-h100-node", "h100-8xndr", "dgx-h200-node", "dgx-b200-node"),
    *("gb200-node", "gb200-nvl72", "gb300-node", "l40s-node", "mi300x-node", "dgx-2"),
    *("perlmutter-node", "perlmutter", "frontier", "alps-gh200", "polaris"),
)
"""Tables that constants are fitted to, here and in the packaged libraries; others validate."""
TRAYS = ("gb200-nvl72",)
"""Tables whose nodes are trays of what is one node here."""
# NCCL all-reduce on Perlmutter, milliseconds at 32 ... 2048 GPUs, read off the figures of
# arXiv 2504.18658 (v2), which the CSV does not hold.
FIGURE_RANKS = (32, 64, 128, 256, 512, 1024, 2048)
FIGURE = {64: (2.44, 3.21, 3.58, 3.95, 4.83, 5.38, 5.37), 128: (4.53, 5.04, 5.74, 6.48, 6.82, 7.40, 8.52)}


@dataclass(frozen=True)
class Row:
    """One measurement and the group it was made on."""

    table: str
    kind: CollectiveKind
    library: str
    ranks: int
    bytes: float
    seconds: float
    group: Group
    wrapper_seconds: float
    """What the measurement contains beside the collective."""
    source: str = ""
    note: str = ""
    """How it was measured."""

    def predict(self, library: Library) -> float:
        """Seconds by the cost model, with the measurement's own wrapper."""
        best = min(option.seconds for option in options(self.group, library, self.kind, self.bytes))
        return best + self.wrapper_seconds


def placed(machine: Machine, kind: CollectiveKind, ranks: int, nodes: int | None = None) -> Placement:
    """Return where a measured group is: filling node after node, or on so many nodes, as many ranks on each."""
    per_node = machine.devices_per_node if nodes is None else -(-ranks // nodes)
    if kind == "send":
        ranks, per_node = 2, 1 if (nodes or -(-ranks // per_node)) > 1 else 2
    return Placement.contiguous(ranks, per_node, machine.network.group_nodes)


def as_chosen(row: Mapping[str, Any]) -> bool:
    """Tell whether the library chose the algorithm itself."""
    return (row.get("algorithm") or "default") == "default"


def wrapper_seconds(source: str) -> float:
    """Return the time that a measurement with this source contains beside the collective."""
    return WRAPPER_SECONDS if WRAPPER in source else 0.0


def read_rows(path: Path) -> list[Row]:
    """Read the table, and add the published figure."""
    machines: dict[str, Machine] = {}
    groups: dict[tuple[str, CollectiveKind, int, int | None], Group] = {}

    def row(
        table: str,
        kind: str,
        library: str,
        place: tuple[int, int | None],
        numbers: tuple[float, float],
        source: str,
        note: str = "",
    ) -> Row:
        name, ranks, nodes, known = TABLE_MACHINES[table], *place, KIND[kind]
        if name not in machines:
            machines[name] = load_machine(name)
        machine = machines[name]
        if (name, known, ranks, nodes) not in groups:
            groups[name, known, ranks, nodes] = look(machine, placed(machine, known, ranks, nodes))
        group = groups[name, known, ranks, nodes]
        return Row(table, known, library, ranks, *numbers, group, wrapper_seconds(source), source, note)

    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            row(
                r["machine"],
                r["collective"],
                r["library"],
                (int(r["ranks"]), None if r["machine"] in TRAYS else int(r.get("nodes") or 0) or None),
                (float(r["bytes"]), float(r["microseconds"]) * 1e-6),
                r.get("source") or "",
                r.get("note") or "",
            )
            for r in csv.DictReader(file)
            if r["machine"] in FITTED and r["collective"] in KIND and as_chosen(r)
        ]
    rows += [
        row("perlmutter", "all_reduce", "nccl", (ranks, None), (mib * MIB, ms * 1e-3), "")
        for mib, times in FIGURE.items()
        for ranks, ms in zip(FIGURE_RANKS, times, strict=True)
    ]
    return rows
