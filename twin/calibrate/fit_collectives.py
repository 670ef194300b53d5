"""Fit the library constants to measured collectives: `python -m twin.calibrate.fit_collectives CSV`.

The CSV has the columns machine, collective, library, ranks, bytes, microseconds. Only
microbenchmarks go in; no training time ever does. Each fit is a robust least-squares on
log(predicted / measured), over a handful of constants of one library; it prints the constants
with their standard errors and then the error of every group of rows. It writes nothing: the
values go into `topologies/libraries/*.yaml` by hand, or with `--out FILE` as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twin.calibrate.collective_table import MIB, TABLE_MACHINES, Row, read_rows
from twin.description.library import Library
from twin.description.load import load_machine

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
"""Collectives that constants of rings are kept by."""
FARTHEST = 20.0
"""Factor by which no constant leaves the value that it has: what no row binds would run away."""
ROBUST = 0.3
"""Relative error beyond which a row counts less than quadratically: repeats differ by 1.01 to 1.25,
protocol spikes and bad points by more."""


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
PAIRWISE = (
    Constant("all-to-all, few channels: base", ("pairwise.few_channels_base",)),
    Constant("all-to-all, few channels: efficiency", ("pairwise.few_channels_efficiency",), 1.0),
    Constant("all-to-all base", ("pairwise.base",)),
    Constant("all-to-all efficiency", ("pairwise.local_efficiency",), 1.0),
)
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
    return row.bytes >= least[row.kind]


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
    Fit(  # on two nodes: by nothing longer than that are trees told from rings there
        "dgx-a100",
        "nccl",
        (Constant("tree local", ("tree.local_efficiency",), 1.0),),
        lambda r: r.table == "dgx-a100" and r.kind == "all_reduce" and r.bytes >= 16 * MIB,
    ),
    Fit(
        "dgx-h100",
        "nccl",
        (*NODE, *PAIRWISE),
        lambda r: r.table == "dgx-h100-node" and ("aiconfigurator" in r.source or r.kind == "all_to_all"),
    ),
    Fit("dgx-h100", "nccl", IN_SWITCH, lambda r: r.table == "dgx-h100-node" and r.kind == "all_reduce"),
    Fit("dgx-h100", "nccl", PAIRWISE_NETWORK, lambda r: r.table == "h100-8xndr" and r.kind == "all_to_all"),
    Fit(
        "dgx-2",
        "nccl",
        _each("local_efficiency", ("all_gather",), 1.0),
        lambda r: r.table == "dgx-2" and r.kind == "all_gather" and r.bytes >= 64 * MIB,
    ),
    Fit("hgx-h200", "nccl", PAIRWISE, lambda r: r.table == "dgx-h200-node" and r.kind == "all_to_all"),
    Fit("dgx-b200", "nccl", (*NODE, *IN_SWITCH, *PAIRWISE), lambda r: r.table == "dgx-b200-node"),
    Fit(
        "gb200-nvl72",
        "nccl",
        (*(c for c in NODE if c.name != "LL128 local share"), *PAIRWISE),  # rings' rates say the same
        lambda r: r.table == "gb200-node",
    ),
    Fit("gb200-nvl72", "nccl", IN_SWITCH, lambda r: r.table == "gb200-nvl72" and r.group.nodes == 1),
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
        lambda r: r.table == "mi300x-node",
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


def run(fit: Fit, rows: Iterable[Row], begun: Library) -> tuple[Library, dict[str, tuple[float, float]]]:
    """Fit one library from what it is; return it with its new constants, and value and relative error of each."""
    from scipy.optimize import least_squares  # noqa: PLC0415

    chosen = [row for row in rows if fit.wanted(row)]
    if not chosen:
        raise ValueError(f"the table has no row of {fit.machine}, {fit.library}")
    raw = begun.model_dump(by_alias=True)
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
        residuals,
        np.minimum(start, upper - 0.01),
        loss="soft_l1",
        f_scale=ROBUST,
        diff_step=1e-3,
        bounds=(start - np.log(FARTHEST), np.minimum(upper, start + np.log(FARTHEST))),
        max_nfev=60,
    )
    curvature = found.jac.T @ found.jac
    variance = np.median(np.abs(residuals(found.x))) ** 2 * 2.2
    # A constant that no row depends on has no curvature: its error is infinite, not zero.
    blind = np.diag(curvature) < 1e-6
    errors = np.where(blind, np.inf, np.sqrt(np.maximum(np.diag(np.linalg.pinv(curvature)), 0) * variance))
    values = np.exp(found.x)
    return library(found.x), {
        c.name: (float(v), float(e)) for c, v, e in zip(fit.constants, values, errors, strict=True)
    }


def error_table(rows: Iterable[Row], libraries: dict[tuple[str, str], Library]) -> list[str]:
    """Relative errors per (table, library, collective), small, middle and large messages."""
    groups: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        library = libraries.get((TABLE_MACHINES[row.table], row.library))
        if library is not None:
            error = row.predict(library) / row.seconds - 1
            groups.setdefault((row.table, row.library, row.kind), []).append((row.bytes, error))
    columns = ("sizes", "rows", "median", "90 %", "bias")
    lines = [f"{'table':16}{'library':9}{'collective':15}" + "".join(f"{c:>10}" for c in columns)]
    for (table, name, kind), pairs in sorted(groups.items()):
        least = least_bytes(table, kind)
        small = ("< 1 MiB", 0.0, MIB - 1)
        for label, low, high in (small, ("1 MiB ...", MIB, least - 1), (f">={least / MIB:.0f} MiB", least, np.inf)):
            found = np.array([error for size, error in pairs if low <= size <= high])
            if len(found):
                sizes = np.abs(found)
                numbers = (np.median(sizes), np.percentile(sizes, 90), np.median(found))
                lines.append(
                    f"{table:16}{name:9}{kind:15}{label:>10}{len(found):10}" + "".join(f"{x:10.1%}" for x in numbers)
                )
    return lines


def least_bytes(table: str, kind: str) -> float:
    """Smallest message that counts for accuracy: below, Frontier's all-gathers show spikes."""
    return 256 * MIB if (table, kind) == ("frontier", "all_gather") else 4 * MIB


def packaged() -> dict[tuple[str, str], Library]:
    """The libraries as they are in `topologies`, by (machine, name in the CSV)."""
    return {(fit.machine, fit.library): load_machine(fit.machine).libraries[fit.library] for fit in FITS}


def main() -> None:
    """Fit, print the constants and the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, nargs="+")
    parser.add_argument("--only", help="fit this machine only")
    parser.add_argument("--ranks", help="fit to groups of so many ranks, such as 4,16: errors are those of all others")
    parser.add_argument("--check", action="store_true", help="no fit: errors of the packaged constants")
    parser.add_argument("--out", type=Path, help="write the fitted libraries as JSON")
    arguments = parser.parse_args()
    write = sys.stdout.write
    rows = [row for path in arguments.csv for row in read_rows(path)]
    libraries = packaged()
    kept = {int(number) for number in arguments.ranks.split(",")} if arguments.ranks else {row.ranks for row in rows}
    chosen = [row for row in rows if row.ranks in kept]
    left_out = [row for row in rows if row.ranks not in kept]
    fitted: dict[str, Any] = {}
    for fit in () if arguments.check else FITS:
        if arguments.only in (None, fit.machine) and any(map(fit.wanted, chosen)):
            library, constants = run(fit, chosen, libraries[fit.machine, fit.library])
            libraries[fit.machine, fit.library] = library
            fitted.setdefault(f"{fit.machine}, {fit.library}", {}).update(
                {p: constants[c.name][0] for c in fit.constants for p in c.paths}
            )
            write(f"\n{fit.machine}, {fit.library}\n")
            for name, (value, error) in constants.items():
                write(f"  {name:32} {value:12.4g}  ± {error:.0%}\n")
    write("\n" + "\n".join(error_table(left_out or rows, libraries)) + "\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(fitted, indent=1))


if __name__ == "__main__":
    main()
