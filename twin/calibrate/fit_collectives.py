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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from twin.calibrate.collective_fits import FITS, Fit
from twin.calibrate.collective_table import MIB, TABLE_MACHINES, Row, read_rows
from twin.description.library import Library
from twin.description.load import load_machine

FARTHEST = 20.0
"""Factor by which no constant leaves the value that it has: what no row binds would run away."""
ROBUST = 0.3
"""Relative error beyond which a row counts less than quadratically: repeats differ by 1.01 to 1.25,
protocol spikes and bad points by more."""


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
