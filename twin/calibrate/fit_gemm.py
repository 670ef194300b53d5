"""Fit the matrix-product constants of a device to a table of measured products.

    python -m twin.calibrate.fit_gemm CSV [--device NAME]

reads `device,m,n,k,microseconds`, fits the constants of `GemmModel` by robust least squares on
the logarithm of the error, and prints each constant with its
standard error and the errors on the rows fitted, on shapes left out at random, and on values of
m left out. Nothing is written: values go into `topologies/devices` by hand.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twin.calibrate.unfilled import holds_data, with_empty_operands
from twin.cost.gemm import products_seconds
from twin.description.device import Device
from twin.description.load import load_device, names
from twin.description.parameter import Parameter

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SHARES = ("main_loop_share", "memory_share", "wave_smoothing", "sustained_share")
"""Fitted as log-odds; all others as logarithms."""
START = {
    "main_loop_share": 0.95,
    "memory_share": 0.8,
    "wave_smoothing": 0.5,
    "launch_seconds": 2e-6,
    "split_seconds": 2e-6,
    "tile_seconds": 1e-6,
    "feed_bytes_per_flop": 0.03,
    "write_bytes_per_flop": 0.015,
    "sustained_share": 0.8,
}
"""The constants fitted and where every fit starts, whatever the YAML says."""
MIN_CONSTANTS = ("main_loop_share", "memory_share", "launch_seconds")
"""What a table of fewer than `MIN_ROWS` rows can tell; the others stay as in the YAML."""
MIN_ROWS = 100
REACH, SHARE_REACH = 3.0, 5.0
"""Distance that a constant may move from its start: e-folds, and log-odds for shares."""
LARGE_FLOPS = 1e10
"""Products that decide the time of a training step."""
SMALL_WEIGHT = 0.3
"""Weight of rows below `LARGE_FLOPS`, which training rarely meets."""


@dataclass(frozen=True)
class Rows:
    """Measured products: sizes and seconds."""

    m: Array
    n: Array
    k: Array
    seconds: Array

    def where(self, mask: Mask) -> Rows:
        """Return the rows chosen by a mask."""
        return Rows(self.m[mask], self.n[mask], self.k[mask], self.seconds[mask])

    @property
    def flops(self) -> Array:
        """Multiply-adds counted as two."""
        return 2 * self.m * self.n * self.k


def is_filled(path: Path) -> bool:
    """Tell whether a table says what its operands hold; the older ones do not, and theirs were never filled."""
    with path.open(newline="", encoding="utf-8") as file:
        return "operands" in (csv.DictReader(file).fieldnames or [])


def read_rows(path: Path, device: str) -> Rows:
    """Read the rows of one device from a table with times in microseconds.

    Where the table says what the operands hold, those that hold data, in 16 bits.
    """
    with path.open(newline="", encoding="utf-8") as file:
        table = [
            r
            for r in csv.DictReader(file)
            if r["device"] == device
            and ("operands" not in r or holds_data(r["operands"]))
            and not r.get("dtype", "").startswith("fp8")
        ]
    values = np.array([[float(r[c]) for c in ("m", "n", "k", "microseconds")] for r in table])
    m, n, k, microseconds = values.reshape(-1, 4).T
    return Rows(m, n, k, microseconds * 1e-6)


def errors(device: Device, rows: Rows) -> Array:
    """Return predicted over measured time, minus one."""
    return np.asarray(products_seconds(device, rows.m, rows.n, rows.k) / rows.seconds - 1)


def summary(found: Array, rows: Rows) -> str:
    """Median and 90th percentile of the absolute error, large and small products apart."""
    parts, large = [], rows.flops >= LARGE_FLOPS
    for label, mask in (("2mnk >= 1e10", large), ("smaller", ~large)):
        if mask.any():
            e = 100 * found[mask]
            median, high = np.quantile(np.abs(e), (0.5, 0.9))
            parts.append(
                f"{label}: {mask.sum()} rows, median {median:.1f} %, p90 {high:.1f} %, bias {np.median(e):+.1f} %"
            )
    return "; ".join(parts)


def with_constants(device: Device, constants: Sequence[str], x: Array) -> Device:
    """Return the device with constants replaced by those of the transformed vector `x`."""
    update = {}
    for name, v in zip(constants, x, strict=True):
        value = 1 / (1 + np.exp(-v)) if name in SHARES else np.exp(v)
        update[name] = Parameter(float(value), "calibrated", "twin.calibrate.fit_gemm")
    return device.model_copy(update={"gemm": device.gemm.model_copy(update=update)})


def fit(device: Device, rows: Rows, known: Collection[str] = ()) -> tuple[Device, dict[str, tuple[float, float]]]:
    """Fit the constants but those `known`; return the device, and each constant with its standard error."""
    from scipy.optimize import least_squares  # noqa: PLC0415 (twin does not depend on scipy)

    constants = tuple(c for c in (START if len(rows.m) >= MIN_ROWS else MIN_CONSTANTS) if c not in known)
    start = np.array([np.log(START[c] / (1 - START[c])) if c in SHARES else np.log(START[c]) for c in constants])
    reach = np.array([SHARE_REACH if c in SHARES else REACH for c in constants])
    weight = np.where(rows.flops >= LARGE_FLOPS, 1.0, SMALL_WEIGHT)

    def residuals(x: Array) -> Array:
        return np.asarray(weight * np.log1p(errors(with_constants(device, constants, x), rows)))

    found = least_squares(
        residuals,
        start,
        bounds=(start - reach, start + reach),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=1e-3,
        max_nfev=100,
    )
    told = np.abs(found.jac).sum(axis=0) > 0
    spread = float(np.var(residuals(found.x)))
    covariance = np.linalg.pinv(found.jac[:, told].T @ found.jac[:, told], hermitian=True) * spread
    deviation = np.full(len(constants), np.nan)
    deviation[told] = np.sqrt(np.maximum(np.diag(covariance), 0))
    fitted, table = with_constants(device, constants, found.x), {}
    for name, error in zip(constants, deviation, strict=True):
        value = float(getattr(fitted.gemm, name))
        table[name] = (value, float(error) * (value * (1 - value) if name in SHARES else value))
    return fitted, table


def left_out(device: Device, rows: Rows, folds: Sequence[Mask]) -> tuple[Array, Rows]:
    """Return the errors on each fold of a fit to the rows outside it, and those rows."""
    found = np.full_like(rows.m, np.nan)
    for fold in folds:
        found[fold] = errors(fit(device, rows.where(~fold))[0], rows.where(fold))
    tested = ~np.isnan(found)
    return found[tested], rows.where(tested)


def report(device: Device, rows: Rows) -> list[str]:
    """Fit, then fit again with shapes and with values of m left out; return the lines to print."""
    fitted, table = fit(device, rows)
    third = np.random.default_rng(0).permutation(len(rows.m)) % 3 == 0
    lines = [
        device.name,
        f"  as in YAML       {summary(errors(device, rows), rows)}",
        f"  fitted           {summary(errors(fitted, rows), rows)}",
        f"  third left out   {summary(*left_out(device, rows, [third]))}",
    ]
    if len(rows.m) >= MIN_ROWS:
        values = np.unique(rows.m)
        folds = [np.isin(rows.m, values[i::4]) for i in range(4)]
        lines += [f"  m left out       {summary(*left_out(device, rows, folds))}"]
    lines += [f"    {c:28s} {value:12.5g} ± {error:.2g}" for c, (value, error) in table.items()]
    if any(np.isnan(error) for _, error in table.values()):
        lines += ["    (nan: no row is bounded by this constant)"]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m twin.calibrate.fit_gemm", description=__doc__)
    parser.add_argument("table", type=Path, help="CSV with device,m,n,k,microseconds")
    parser.add_argument("--device", choices=names("devices"), help="one device; default all in the table")
    options = parser.parse_args(arguments)
    for name in [options.device] if options.device else names("devices"):
        device, rows = load_device(name), read_rows(options.table, name)
        if not is_filled(options.table):
            device = with_empty_operands(device)
        if len(rows.m):
            sys.stdout.write("\n".join(report(device, rows)) + "\n")


if __name__ == "__main__":
    main()
