"""Fit the constants of an attention kernel on a device to a table of measured attention.

    python -m twin.calibrate.fit_attention CSV [--device NAME]

reads `device,kernel,direction,head_size,heads,sequence,batch,causal,tflops`, fits the constants of
`AttentionModel` by robust least squares on the logarithm of the error, and prints each with the errors on
the rows fitted and on lengths left out. Nothing is written: values go into `topologies/devices` by hand.

Rates are counted as FlashAttention's authors do: 4·b·s²·h·d flops forward, 2.5 times that backward,
half of both where a causal mask hides half.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twin.cost.kernels import kernel_seconds
from twin.description.device import AttentionModel, Device
from twin.description.load import load_device
from twin.description.parameter import Parameter
from twin.schedule.kernels import Attention

Array = NDArray[np.float64]

TABLE_DEVICES = {
    "a100-sxm4-80gb": "a100-sxm4-80gb",
    "h100-sxm": "h100-sxm",
    "h200": "h200",
    "mi250x-gcd": "mi250x-gcd",
    "mi300x": "mi300x",
    "b200": "b200",
    "gb200": "gb200",
}
"""Names of the table → names of devices."""
TABLE_KERNELS = {
    "FlashAttention 1": "flash1",
    "FlashAttention 1 Triton": "triton",
    "Triton": "triton2",
    "Triton ROCm": "triton2",
    "FlashAttention 2": "flash2",
    "FlashAttention 3": "flash3",
    "cuDNN 9": "cudnn",
    "cudnn 91901": "cudnn",
    "cudnn 92200": "cudnn",
    "FlashAttention 2.7.4": "flash2",
    "FlashAttention 2 (CK), ROCm 6.3.2": "ck",
    "xformers cutlass": "cutlass",
    "FlashAttention (CK, ROCm fork)": "ck",
}
"""Names of the table → names of kernels."""
START = {"forward_share": 0.6, "backward_share": 0.5, "narrow_ratio": 0.9, "half_length": 50.0, "masked_rows": 256.0}
"""The constants fitted and where every fit starts."""
PULL = {"forward_share": 0.01, "backward_share": 0.01, "narrow_ratio": 0.05, "half_length": 0.01, "masked_rows": 0.01}
"""Weight of the start, for what a kernel's rows do not tell."""
TIE = 0.1
"""Weight of forward's and backward's share being equal, where only both together were timed."""
BLOCK_ROWS = 128
HEAD_SIZES = ("64", "128", "256")
EIGHT_BITS = ("fp8", "mxfp8")
"""Types that the rates of a device are not for."""
BACKWARD_FLOPS = 2.5


@dataclass(frozen=True)
class Row:
    """One measured attention."""

    sequences: int
    length: int
    heads: int
    head_size: int
    direction: str
    """`fwd`, `bwd` or `fwd+bwd`."""
    causal: bool
    seconds: float


def read_rows(path: Path) -> dict[tuple[str, str], list[Row]]:
    """Read a table, by device and kernel; rows of other devices, kernels and head sizes are left out."""
    found: dict[tuple[str, str], list[Row]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for raw in csv.DictReader(file):
            device, kernel = TABLE_DEVICES.get(raw["device"]), TABLE_KERNELS.get(raw["kernel"])
            known = device and kernel and raw["head_size"] in HEAD_SIZES and raw.get("dtype") not in EIGHT_BITS
            if device and kernel and known and raw["sequence"] and raw["tflops"]:
                found.setdefault((device, kernel), []).append(read_row(raw))
    return found


def read_row(raw: Mapping[str, str]) -> Row:
    """Read one row of the table."""
    sequences, length, heads, size = (int(raw[key] or 1) for key in ("batch", "sequence", "heads", "head_size"))
    causal = raw["causal"] == "yes"
    forward = 4.0 * sequences * length**2 * heads * size * (0.5 if causal else 1.0)
    flops = {"fwd": 1.0, "bwd": BACKWARD_FLOPS, "fwd+bwd": 1.0 + BACKWARD_FLOPS}[raw["direction"]] * forward
    return Row(sequences, length, heads, size, raw["direction"], causal, flops / (float(raw["tflops"]) * 1e12))


def predicted_seconds(device: Device, kernel: str, row: Row) -> float:
    """Price a row; without a causal mask all of the score matrix is computed."""
    model = device.attention[kernel]
    if not row.causal:
        model = model.model_copy(update={"masked_rows": Parameter(float(row.length))})
    one = device.model_copy(update={"attention": {"flash": model}, "usual_attention": "flash"})
    return sum(
        kernel_seconds(one, Attention(row.sequences, row.length, row.heads, row.head_size, backward=backward))
        for backward, name in ((False, "fwd"), (True, "bwd"))
        if name in row.direction.split("+")
    )


def errors(device: Device, kernel: str, rows: Sequence[Row]) -> Array:
    """Return predicted over measured time, minus one."""
    return np.array([predicted_seconds(device, kernel, row) / row.seconds - 1 for row in rows])


def with_constants(device: Device, kernel: str, logarithms: Array) -> Device:
    """Return the device with these constants of a kernel, given by their logarithms."""
    values = {**dict(zip(START, np.exp(logarithms), strict=True)), "block_rows": float(BLOCK_ROWS)}
    model = AttentionModel.model_validate(
        {name: Parameter(float(v), "calibrated", "twin.calibrate.fit_attention") for name, v in values.items()}
    )
    return device.model_copy(update={"attention": {**device.attention, kernel: model}})


def fit(device: Device, kernel: str, rows: Sequence[Row]) -> Device:
    """Fit the constants of a kernel."""
    from scipy.optimize import least_squares  # noqa: PLC0415 (twin does not depend on scipy)

    start = np.log(np.array(list(START.values())))
    pull = np.array([PULL[name] for name in START])
    together = len({row.direction for row in rows}) == 1

    def residuals(x: Array) -> Array:
        tied = [TIE * (x[0] - x[1])] if together else []
        known = np.log1p(errors(with_constants(device, kernel, x), kernel, rows))
        return np.concatenate([known, pull * (x - start), tied])

    upper = start + np.log([1 / 0.6, 2.0, 4.0, 100.0, 100.0])
    found = least_squares(residuals, start, bounds=(start - 5, upper), loss="soft_l1", f_scale=0.1)
    return with_constants(device, kernel, found.x)


def told(name: str, found: ArrayLike) -> str:
    """Write a line about errors of rows.

    >>> told("fitted", [0.02, -0.01, 0.03])
    '  fitted            median 2.0 %, p90 2.8 %, bias +2.0 %'
    """
    e = 100 * np.asarray(found)
    middle, most = np.median(np.abs(e)), np.quantile(np.abs(e), 0.9)
    return f"  {name:17s} median {middle:.1f} %, p90 {most:.1f} %, bias {np.median(e):+.1f} %"


def report(device: Device, kernel: str, rows: Sequence[Row]) -> list[str]:
    """Fit, then fit again with a third of the lengths left out; return the lines to print."""
    fitted = fit(device, kernel, rows)
    lengths = sorted({row.length for row in rows})
    left_out = []
    for fold in range(3):
        hidden = set(lengths[fold::3])
        other = fit(device, kernel, [row for row in rows if row.length not in hidden])
        left_out += list(errors(other, kernel, [row for row in rows if row.length in hidden]))
    lines = [f"{device.name} {kernel}: {len(rows)} rows"]
    lines += [told("fitted", errors(fitted, kernel, rows)), told("lengths left out", left_out)]
    model = fitted.attention[kernel]
    return [*lines, *(f"    {name:16s} {getattr(model, name):.4g}" for name in START)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m twin.calibrate.fit_attention", description=__doc__)
    parser.add_argument("table", type=Path, help="CSV with device,kernel,direction,head_size,…,tflops")
    parser.add_argument("--device", help="one device; default all in the table")
    options = parser.parse_args(arguments)
    for (device, kernel), rows in read_rows(options.table).items():
        if options.device in (None, device) and len(rows) >= len(START):
            sys.stdout.write("\n".join(report(load_device(device), kernel, rows)) + "\n")


if __name__ == "__main__":
    main()
