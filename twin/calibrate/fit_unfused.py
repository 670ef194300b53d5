"""Fit how fast unfused attention passes over its scores to a table of measured attention.

    python -m twin.calibrate.fit_unfused CSV [--device NAME]

reads the rows of PyTorch's unfused attention of the table of `fit_attention` and fits shares of the peak memory
rate (`Device.memory_shares`) by robust least squares on the logarithm of the error: of softmax forward and
backward, and of the addition of a causal mask that all heads share. Batched products are priced as ever. What is
timed is FlashAttention's baseline, so that a share holds what the whole lacks beside its products, not softmax
alone: `baddbmm` with the scale in it, a mask of its own added where it is causal, softmax, no dropout. Prints each
share with the errors on the rows fitted and on lengths left out. Nothing is written: values go into
`topologies/devices` by hand.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from twin.calibrate.fit_attention import TABLE_DEVICES, TIE, Array, Row, read_row, told
from twin.cost.gemm import gemm_seconds
from twin.cost.kernels import measured_kind, memory_seconds
from twin.description.device import Device
from twin.description.load import load_device
from twin.description.parameter import Parameter
from twin.schedule.kernels import Attention, Memory
from twin.schedule.ops import Phase

KERNELS = ("PyTorch unfused", "PyTorch math")
"""Names of unfused attention in the table."""
SHARES = ("attention/softmax", "bwd/attention/softmax", "attention/mask")
"""The kinds of work whose shares are fitted."""
START, PULL = 0.6, 0.01


def read_unfused(path: Path) -> dict[str, list[Row]]:
    """Read the rows of unfused attention by device; a file that is none raises KeyError."""
    found: dict[str, list[Row]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for raw in csv.DictReader(file):
            device = TABLE_DEVICES.get(raw["device"])
            if device and raw["kernel"] in KERNELS and raw["sequence"] and raw["tflops"]:
                found.setdefault(device, []).append(read_row(raw))
    return found


def predicted_seconds(device: Device, row: Row) -> float:
    """Price a row as the benchmark ran it."""
    ways = ((False, "fwd"), (True, "bwd"))
    return sum(_pass(device, row, backward=backward) for backward, name in ways if name in row.direction.split("+"))


def _pass(device: Device, row: Row, *, backward: bool) -> float:
    attention = Attention(
        row.sequences, row.length, row.heads, row.head_size, "fused_softmax", backward=backward, mask=True
    )
    products = sum(gemm_seconds(device, product) for product in attention.products)
    between = [*attention.between]
    if row.causal and not backward:
        between.append(Memory(2 * attention.score_bytes, work="attention/mask"))
    phase: Phase = "bwd" if backward else "fwd"
    return products + sum(memory_seconds(device, work, measured_kind(device, work, phase)) for work in between)


def errors(device: Device, rows: Sequence[Row]) -> Array:
    """Return predicted over measured time, minus one."""
    return np.array([predicted_seconds(device, row) / row.seconds - 1 for row in rows])


def with_shares(device: Device, logarithms: Array) -> Device:
    """Return the device with these shares, given by their logarithms."""
    values = zip(SHARES, np.exp(logarithms), strict=True)
    shares = {kind: Parameter(float(v), "calibrated", "twin.calibrate.fit_unfused") for kind, v in values}
    return device.model_copy(update={"memory_shares": {**device.memory_shares, **shares}})


def fit(device: Device, rows: Sequence[Row]) -> Device:
    """Fit the three shares; what rows do not tell stays near where the fit starts."""
    from scipy.optimize import least_squares  # noqa: PLC0415 (twin does not depend on scipy)

    start = np.full(len(SHARES), np.log(START))
    together = len({row.direction for row in rows}) == 1

    def residuals(x: Array) -> Array:
        tied = [TIE * (x[0] - x[1])] if together else []
        return np.concatenate([np.log1p(errors(with_shares(device, x), rows)), PULL * (x - start), tied])

    return with_shares(device, least_squares(residuals, start, bounds=(-5, 0), loss="soft_l1", f_scale=0.1).x)


def report(device: Device, rows: Sequence[Row]) -> list[str]:
    """Fit, then fit again with a third of the lengths left out; return the lines to print."""
    fitted = fit(device, rows)
    lengths = sorted({row.length for row in rows})
    left_out: list[float] = []
    for fold in range(3):
        hidden = set(lengths[fold::3])
        other = fit(device, [row for row in rows if row.length not in hidden])
        left_out += list(errors(other, [row for row in rows if row.length in hidden]))
    lines = [f"{device.name} unfused: {len(rows)} rows"]
    lines += [told("as it is", errors(device, rows)), told("fitted", errors(fitted, rows))]
    lines.append(told("lengths left out", left_out))
    return [*lines, *(f"    {kind:22s} {float(fitted.memory_shares[kind]):.3f}" for kind in SHARES)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m twin.calibrate.fit_unfused", description=__doc__)
    parser.add_argument("table", type=Path, help="CSV with device,kernel,direction,head_size,…,tflops")
    parser.add_argument("--device", help="one device; default all in the table")
    options = parser.parse_args(arguments)
    for device, rows in read_unfused(options.table).items():
        if options.device in (None, device):
            sys.stdout.write("\n".join(report(load_device(device), rows)) + "\n")


if __name__ == "__main__":
    main()
