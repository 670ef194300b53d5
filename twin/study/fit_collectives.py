"""Fit the library constants to measured collectives: `python -m twin.study.fit_collectives CSV`.

The CSV has the columns machine, collective, library, ranks, bytes, microseconds. Only
microbenchmarks go in; no training time ever does. Each fit is a robust least-squares on
log(predicted / measured), over a handful of constants of one library; it prints the constants
with their standard errors and then the error of every group of rows. It writes nothing: the
values go into `topologies/libraries/*.yaml` by hand, or with `--out FILE` as JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twin.cost.collective import options
from twin.cost.collective_group import Group, look
from twin.cost.placement import Placement
from twin.description.library import CollectiveKind, Library
from twin.description.load import load_machine
from twin.description.machine import Machine

MIB = 2.0**20
# What the FR-RCCL tables contain beside the collective: the MPI wrapper (17 us, same source).
WRAPPER_SECONDS = {("frontier", "all_reduce"): 17e-6}
TABLE_MACHINES = {
    "dgx-a100-node": "dgx-a100",
    "dgx-h100-node": "dgx-h100",
    "perlmutter-node": "perlmutter",
    "perlmutter": "perlmutter",
    "frontier": "frontier",
}
# NCCL all-reduce on Perlmutter, milliseconds at 32 ... 2048 GPUs, read off the figures of
# arXiv 2504.18658 (v2), which the CSV does not hold.
FIGURE_RANKS = (32, 64, 128, 256, 512, 1024, 2048)
FIGURE = {
    64: (2.44, 3.21, 3.58, 3.95, 4.83, 5.38, 5.37),
    128: (4.53, 5.04, 5.74, 6.48, 6.82, 7.40, 8.52),
}


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

    def predict(self, library: Library) -> float:
        """Seconds by the cost model, with the measurement's own wrapper."""
        best = min(option.seconds for option in options(self.group, library, self.kind, self.bytes))
        return best + WRAPPER_SECONDS.get((self.table, self.kind), 0.0)


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


def read_rows(path: Path) -> list[Row]:
    """Read the table, and add the published figure."""
    machines: dict[str, Machine] = {}
    groups: dict[tuple[str, int], Group] = {}

    def row(table: str, kind: Any, library: str, ranks: int, size: float, seconds: float) -> Row:
        name = TABLE_MACHINES[table]
        machine = machines.setdefault(name, load_machine(name))
        if (name, ranks) not in groups:
            placement = Placement.contiguous(ranks, machine.devices_per_node, machine.network.group_nodes)
            groups[name, ranks] = look(machine, placement)
        return Row(table, kind, library, ranks, size, seconds, groups[name, ranks])

    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            row(r["machine"], r["collective"], r["library"], int(r["ranks"]), float(r["bytes"]),
                float(r["microseconds"]) * 1e-6)
            for r in csv.DictReader(file) if r["machine"] in TABLE_MACHINES
        ]  # fmt: skip
    rows += [
        row("perlmutter", "all_reduce", "nccl", ranks, mib * MIB, ms * 1e-3)
        for mib, times in FIGURE.items()
        for ranks, ms in zip(FIGURE_RANKS, times, strict=True)
    ]
    return rows


def _hops(names: Sequence[str]) -> tuple[Constant, ...]:
    """Per protocol: base and ring hop inside a node; the share of bandwidth but for Simple."""
    found: list[Constant] = []
    for name in names:
        found.append(Constant(f"{name} base", (f"protocols.{name}.base",)))
        found.append(Constant(f"{name} local hop", (f"protocols.{name}.ring_local_hop",)))
        if name != "Simple":
            found.append(Constant(f"{name} local share", (f"protocols.{name}.local_share",), 1.0))
    return tuple(found)


def _each(key: str, kinds: Sequence[str], upper: float = np.inf) -> tuple[Constant, ...]:
    return tuple(Constant(f"{key} {k}", (f"ring.{key}.{k}",), upper) for k in kinds)


KINDS = ("all_gather", "reduce_scatter", "all_reduce")
NODE = (*_hops(("LL", "LL128", "Simple")), *_each("local_efficiency", KINDS, 1.0))
TREE = (
    Constant("tree Simple network hop", ("protocols.Simple.tree_network_hop",)),
    Constant("tree many nodes", ("tree.many_nodes_efficiency",), 1.0),
    Constant("tree piece", ("tree.piece",)),
    Constant("tree largest piece", ("tree.largest_piece",)),
)


def _all(key: str, upper: float = np.inf) -> Constant:
    return Constant(f"{key}, all", tuple(f"ring.{key}.{k}" for k in KINDS), upper)


def _frontier(row: Row) -> bool:
    if row.table != "frontier" or row.library != "rccl":
        return False
    # Smaller all-gathers show protocol spikes of 20 to 870 ms; smaller reduce-scatters, harness.
    least = {"all_gather": 256 * MIB, "reduce_scatter": 4 * MIB, "all_reduce": 0.0, "broadcast": 0.0}
    return row.bytes >= least[row.kind]


FITS = (
    Fit("dgx-a100", "nccl", NODE, lambda r: r.table == "dgx-a100-node"),
    Fit(
        "dgx-h100", "nccl",
        (*NODE, Constant("in-switch base", ("in_switch.base",)), Constant("in-switch efficiency", ("in_switch.efficiency",), 1.0)),
        lambda r: r.table == "dgx-h100-node",
    ),
    Fit(
        "perlmutter", "nccl",
        (
            _all("local_efficiency", 1.0), _all("network_efficiency", 1.0), _all("network_step"),
            Constant("LL network hop", ("protocols.LL.ring_network_hop",)),
            Constant("LL network share", ("protocols.LL.network_share",), 1.0),
            Constant("Simple tree network hop", ("protocols.Simple.tree_network_hop",)),
            Constant("tree efficiency", ("tree.network_efficiency", "tree.many_nodes_efficiency"), 1.0),
            Constant("tree piece", ("tree.piece",)),
        ),
        lambda r: r.table in {"perlmutter", "perlmutter-node"} and r.library == "nccl",
    ),
    Fit(
        "frontier", "rccl",
        (
            *_each("local_efficiency", KINDS, 1.0), *_each("network_efficiency", KINDS, 1.0), *_each("network_step", KINDS),
            Constant("LL ring network hop", ("protocols.LL.ring_network_hop",)),
            Constant("LL tree network hop", ("protocols.LL.tree_network_hop",)),
            Constant("LL local share", ("protocols.LL.local_share",), 1.0),
            Constant("LL network share", ("protocols.LL.network_share",), 1.0),
            Constant("Simple local hop", ("protocols.Simple.ring_local_hop",)),
            Constant("tree local", ("tree.local_efficiency",), 1.0),
            Constant("tree two nodes", ("tree.network_efficiency",), 1.0),
            *TREE,
        ),
        _frontier,
    ),
)  # fmt: skip


def get(raw: dict[str, Any], path: str) -> float:
    """Read the parameter at a dotted path of a dumped library."""
    for key in path.split("."):
        raw = raw[key]
    return float(raw["value"])


def put(raw: dict[str, Any], path: str, value: float) -> None:
    """Replace the value at a dotted path, keeping kind and source."""
    for key in path.split("."):
        raw = raw[key]
    raw["value"] = value


def run(fit: Fit, rows: Iterable[Row]) -> tuple[Library, dict[str, tuple[float, float]]]:
    """Fit one library; return it with its new constants, and value and relative error of each."""
    from scipy.optimize import least_squares  # noqa: PLC0415: only here

    chosen = [row for row in rows if fit.wanted(row)]
    raw = load_machine(fit.machine).libraries[fit.library].model_dump(by_alias=True)
    start = np.log([get(raw, constant.paths[0]) for constant in fit.constants])
    upper = np.log([constant.upper for constant in fit.constants])

    def library(logs: np.ndarray[Any, Any]) -> Library:
        for constant, value in zip(fit.constants, np.exp(logs), strict=True):
            for path in constant.paths:
                put(raw, path, float(value))
        return Library.model_validate(raw)

    def residuals(logs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        candidate = library(logs)
        return np.log([row.predict(candidate) / row.seconds for row in chosen])

    found = least_squares(
        residuals, np.minimum(start, upper - 0.01), loss="soft_l1", f_scale=0.1, diff_step=1e-3,
        bounds=(np.full(len(start), -np.inf), upper), max_nfev=60,
    )  # fmt: skip
    curvature = found.jac.T @ found.jac
    variance = np.median(np.abs(residuals(found.x))) ** 2 * 2.2
    errors = np.sqrt(np.diag(np.linalg.pinv(curvature)) * variance)
    values = np.exp(found.x)
    return library(found.x), {
        c.name: (float(v), float(e)) for c, v, e in zip(fit.constants, values, errors, strict=True)
    }


def error_table(rows: Iterable[Row], libraries: dict[tuple[str, str], Library]) -> list[str]:
    """Relative errors per (table, library, collective), small, middle and large messages."""
    groups: dict[tuple[str, str, str], list[tuple[Row, float]]] = {}
    for row in rows:
        library = libraries.get((TABLE_MACHINES[row.table], row.library))
        if library is not None:
            error = row.predict(library) / row.seconds - 1
            groups.setdefault((row.table, row.library, row.kind), []).append((row, error))
    lines = [f"{'table':16}{'library':9}{'collective':16}{'sizes':>10}{'rows':>6}{'median':>8}{'90 %':>8}{'bias':>8}"]
    for (table, library_name, kind), pairs in sorted(groups.items()):
        least = 256 * MIB if (table, kind) == ("frontier", "all_gather") else 4 * MIB
        for name, low, high in (("< 1 MiB", 0.0, MIB - 1), ("1 MiB ...", MIB, least - 1), (f">={least / MIB:.0f} MiB", least, np.inf)):
            errors = np.array([e for row, e in pairs if low <= row.bytes <= high])
            if len(errors):
                lines.append(
                    f"{table:16}{library_name:9}{kind:16}{name:>10}{len(errors):6}"
                    f"{np.median(np.abs(errors)):8.1%}{np.percentile(np.abs(errors), 90):8.1%}{np.median(errors):+8.1%}"
                )
    return lines


def packaged() -> dict[tuple[str, str], Library]:
    """The libraries as they are in `topologies`, by (machine, name in the CSV)."""
    return {(fit.machine, fit.library): load_machine(fit.machine).libraries[fit.library] for fit in FITS}


def main() -> None:
    """Fit, print the constants and the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--only", help="fit this machine only")
    parser.add_argument("--check", action="store_true", help="no fit: errors of the packaged constants")
    parser.add_argument("--out", type=Path, help="write the fitted libraries as JSON")
    arguments = parser.parse_args()
    rows = read_rows(arguments.csv)
    libraries = packaged()
    fitted: dict[str, Any] = {}
    for fit in () if arguments.check else FITS:
        if arguments.only in (None, fit.machine):
            library, constants = run(fit, rows)
            libraries[fit.machine, fit.library] = library
            fitted[fit.machine] = {p: constants[c.name][0] for c in fit.constants for p in c.paths}
            print(f"\n{fit.machine}, {fit.library}")
            for name, (value, error) in constants.items():
                print(f"  {name:32} {value:12.4g}  ± {error:.0%}")
    print("\n" + "\n".join(error_table(rows, libraries)))
    if arguments.out:
        arguments.out.write_text(json.dumps(fitted, indent=1))


if __name__ == "__main__":
    main()
