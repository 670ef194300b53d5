"""What a device's own work costs, from products, attention and memory-bound ops that were timed.

Times with every rank at work are used: caches and memory are then as busy as in training. On CPUs
they are times of the core, without the turns that other ranks take on it: the engine shares cores out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twin.calibrate.solve import Array, Fitted, Quality, fit, line
from twin.cost.kernels import kernel_seconds, kind_of_work
from twin.description.device import ColdHost, Device
from twin.description.parameter import Parameter
from twin.description.problems import fail
from twin.schedule.kernels import Attention, Gemm, Mode

Row = Mapping[str, Any]
ALONE = 1.15
"""Slowdown with all ranks at work up to which each is said to have a device of its own."""
ABOVE_FASTEST = 1.02
"""What is called a CPU's peak, over the rate of the fastest product, unless products' arithmetic alone is faster."""
PEAK = f"the rate of products' arithmetic alone, at least {ABOVE_FASTEST:g} times that of the fastest"
PYTORCH, ONEDNN = "pytorch", "onednn"
GEMM_START = {"operands": 1e10, "call": 1e-5, "rate": 1e11, "large_call": 2e-5, "large_rate": 2e11, "columns": 5e9}
GEMM_BOUNDS = {
    "operands": (1e8, 1e13),
    "call": (1e-8, 1e-3),
    "rate": (1e8, 1e13),
    "large_call": (1e-8, 1e-3),
    "large_rate": (1e8, 1e13),
    "columns": (1e8, 1e13),
}
LARGE = ("large_call", "large_rate", "columns")
"""Constants of the library that takes large products, where there are two."""
ATTENTION_START = {"forward_share": 0.3, "backward_share": 0.25, "narrow_ratio": 0.9, "masked_rows": 128.0}
ATTENTION_BOUNDS = {
    "forward_share": (0.01, 1.0),
    "backward_share": (0.01, 1.0),
    "narrow_ratio": (0.2, 2.0),
    "masked_rows": (1.0, 4096.0),
}
BETWEEN = "between"
HOST_START = {"host_seconds": 50e-6, "most_seconds": 50e-6, "half_bytes": 1e6}
HOST_BOUNDS = {"host_seconds": (1e-6, 1e-2), "most_seconds": (1e-8, 1e-2), "half_bytes": (1e4, 1e9)}
PLAIN, OWN = "plain", "four_d"


@dataclass(frozen=True)
class Sharing:
    """Sharing of cores by ranks."""

    cores: float | None
    """None: every rank has its own."""
    shared_by: str
    ranks: int
    """Ranks that share them."""
    turn: float | None = None
    """Seconds that one keeps a core while others want it, if that was seen."""


def sharing(data: Mapping[str, Any]) -> Sharing:
    """See how much slower a product gets when more ranks work at once."""
    rows = [row for row in data["sharing"] if row["work"] == "gemm"]
    ranks, per_host = int(data["ranks"]), int(data["ranks_per_host"])
    if len(rows) < 2:
        return Sharing(None, "node", ranks)
    one = next(float(row["seconds"]) for row in rows if row["busy"] == 1)
    slow = {(int(row["busy"]), int(row["hosts"])): float(row["seconds"]) / one for row in rows}
    if slow[max(slow)] <= ALONE:
        return Sharing(None, "node", ranks)
    # one rank on each host: if they slow each other, the hosts are not really several
    apart = [factor for (busy, on), factor in slow.items() if busy == on > 1]
    turn = next((float(row["seconds"]) for row in data["sharing"] if row["work"] == "turn"), None)
    several = ranks > per_host
    if several and (not apart or max(apart) > ALONE):
        return Sharing(_cores(slow), "machine", ranks, turn)
    inside = {(busy, on): factor for (busy, on), factor in slow.items() if on == 1}
    shared = max(inside.values()) > ALONE
    return Sharing(_cores(inside), "node", per_host, turn) if shared else Sharing(None, "node", per_host)


def _cores(slow: Mapping[tuple[int, int], float]) -> float:
    """Cores that busy ranks keep at work: the most of all sets, for what else runs only takes away."""
    return max(busy / factor for (busy, _), factor in slow.items())


def is_product(row: Row) -> bool:
    """Tell whether a timed op is a matrix product."""
    shape = row["shape"]
    return len(shape) == 3 and bool(row["flops"] == 2.0 * shape[0] * shape[1] * shape[2])


def in_company(rows: Sequence[Row]) -> list[Row]:
    """Rows that were timed with as many ranks at work as any."""
    most = max((int(row["busy"]) for row in rows), default=0)
    return [row for row in rows if int(row["busy"]) == most]


@dataclass(frozen=True)
class FittedProducts:
    """Constants of `CoreProducts`, and the peak that their shares refer to."""

    constants: Mapping[str, Fitted]
    """Seconds of calls, bytes and FLOP a second."""
    peak_flops_per_second: float
    second: tuple[int, int] | None
    """Multiplications, and least of the sizes, from which products are given to oneDNN; None: all go to PyTorch's."""

    def share(self, name: str) -> Fitted:
        """Return a rate as a share of the peak."""
        found = self.constants[name]
        return Fitted(found.value / self.peak_flops_per_second, found.error, found.rows)


def fit_products(data: Mapping[str, Any]) -> tuple[FittedProducts, Quality]:
    """Fit products on a CPU core, as training meets them: from those alone, and from those among other ops."""
    rows, inside = in_company(data["gemm"]), [row for row in in_company(data["kernels"]) if is_product(row)]
    products = [Gemm(r["m"], r["n"], r["k"], r["mode"], element_bytes=r["element_bytes"]) for r in rows]
    products += [product_of(row, products[0].element_bytes) for row in inside]
    measured = np.array([float(row["seconds"]) for row in (*rows, *inside)])
    second = _second_library(data)
    large = np.array([second is not None and _is_large(p, *second) for p in products])
    sizes = np.array([(p.bytes, p.flops, p.m * p.k * p.element_bytes * (p.mode[1] == "T")) for p in products]).T

    def model(constants: Mapping[str, float]) -> Array:
        moved, flops, columns = sizes
        c = {**GEMM_START, **constants}
        small = c["call"] + flops / c["rate"]
        others = c["large_call"] + flops / c["large_rate"] + columns / c["columns"]
        return np.asarray(moved / c["operands"] + np.where(large, others, small))

    start = {name: value for name, value in GEMM_START.items() if large.any() or name not in LARGE}
    fitted, quality = fit(model, measured, start, bounds={name: GEMM_BOUNDS[name] for name in start})
    fastest = ABOVE_FASTEST * max(p.flops / s for p, s in zip(products, measured, strict=True))
    rates = [
        fitted[name].value for name in ("rate", "large_rate") if name in fitted and np.isfinite(fitted[name].error)
    ]
    return FittedProducts(fitted, float(max(fastest, *rates)), second if large.any() else None), quality


def _second_library(data: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return from which sizes on oneDNN multiplies.

    Raises DescriptionError if measurements are of a day when that, and what lies between ops, was not told rightly.
    """
    facts = ("gemm_least_multiplications", "gemm_least_size")
    library = data.get("gemm_library")
    if library is None or (library == "onednn" and not all(data.get(fact) for fact in facts)):
        raise fail("gemm_library", "measurements of CPUs of 2026-11-28 and before have to be measured again", library)
    return (int(data[facts[0]]), int(data[facts[1]])) if library == "onednn" else None


def _is_large(gemm: Gemm, multiplications: int, size: int) -> bool:
    return gemm.m * gemm.n * gemm.k >= multiplications and min(gemm.m, gemm.n, gemm.k) >= size


def product_of(row: Row, element_bytes: int) -> Gemm:
    """Return the product that an op of a step is, with its operands as that stores them."""
    m, n, k = (int(size) for size in row["shape"])
    mode: Mode = "NT" if row["name"].endswith("weight_gradient") else "TN"
    return Gemm(m, n, k, mode, element_bytes=element_bytes)


def with_peak(base: Device, peak_flops_per_second: float) -> Device:
    """Return the device with another peak."""
    return base.model_copy(update={"peak_flops_per_second": Parameter(peak_flops_per_second, "calibrated", "fit")})


def fit_attention(base: Device, data: Mapping[str, Any]) -> tuple[dict[str, Fitted], Quality]:
    """Fit the rates of fused attention on a CPU whose peak is known already."""
    rows = in_company([row for row in data["attention"] if row["form"] == "flash"])
    kernels = [
        Attention(
            row["sequences"],
            row["sequence_length"],
            row["heads"],
            row["head_size"],
            backward=row["backward"],
            element_bytes=4,
        )
        for row in rows
    ]
    measured = np.array([float(row["seconds"]) for row in rows])

    def model(constants: Mapping[str, float]) -> Array:
        update = {name: Parameter(value, "calibrated", "fit") for name, value in constants.items()}
        kernel = base.attention[base.usual_attention].model_copy(update=update)
        device = base.model_copy(update={"attention": {base.usual_attention: kernel}})
        return np.array([kernel_seconds(device, kernel) for kernel in kernels])

    return fit(model, measured, ATTENTION_START, bounds=ATTENTION_BOUNDS)


def kind_of_row(row: Row) -> str | None:
    """Return the kind of memory-bound work that a row measures; None for products and attention."""
    if row["shape"] or row["flops"]:
        return None
    return kind_of_work(row["work"], row["phase"]) if row["work"] else None


def fit_kernels(data: Mapping[str, Any]) -> tuple[dict[str, tuple[Fitted, Fitted]], Quality]:
    """Fit start and rate of every kind of memory-bound work."""
    by_kind: dict[str, list[Row]] = {}
    rows = in_company(data["kernels"])
    known = {kind_of_row(row) for row in rows}
    # what only other strategies do: copies of gathered weights, of gradients out of buckets
    rows += [row for job in data.get("software", ()) for row in job["kernels"] if kind_of_row(row) not in known]
    for row in rows:
        if (kind := kind_of_row(row)) is not None and row["bytes"] > 0:
            by_kind.setdefault(kind, []).append(row)
    found, predicted, measured = {}, [], []
    for kind, rows in sorted(by_kind.items()):
        seconds = [float(row["seconds"]) for row in rows]
        start, rate, _ = line([float(row["bytes"]) for row in rows], seconds)
        found[kind] = start, rate
        predicted += [start.value + row["bytes"] / rate.value for row in rows]
        measured += seconds
    return found, Quality.of(np.array(predicted), np.array(measured))


def issue_seconds(data: Mapping[str, Any]) -> dict[str, Fitted]:
    """Time of the core to issue one collective, by the software that does: what a step needs more than a plain one.

    `four_d` is that of the runtime's own loops, which start each collective by itself.
    """
    rows: list[Row] = data.get("software", [])
    plain = {row["hidden"]: row["seconds_between"] / row["ops"] for row in rows if row["software"] == PLAIN}
    more: dict[str, list[float]] = {}
    for row in rows:
        if row["software"] != PLAIN:
            own = row["seconds_between"] - row["ops"] * plain[row["hidden"]]
            more.setdefault(row["software"], []).append(max(0.0, own) / row["collectives"])
    return {software: _median(seconds) for software, seconds in more.items()}


def host_seconds(data: Mapping[str, Any]) -> dict[str, Fitted]:
    """Find what an op costs the host: of a GPU what deeper models take of it, on CPUs the time from op to op.

    There it depends on what the ops leave of the host's own in the caches: `ColdHost`.
    """
    if not (heard := _between_ops(data)):
        tiny = [row for row in data["host"] if not row["collectives"]]
        runs_ahead = data["device_type"] != "cpu" and len({row["ops"] for row in tiny}) > 1
        return {"host_seconds": _median([_of_deeper(tiny)] if runs_ahead else [_beside(row) for row in tiny])}

    inside = np.array([own.inside for own in heard])

    def model(constants: Mapping[str, float]) -> Array:
        made = {name: Parameter(constants[name], "calibrated", "fit") for name in ColdHost.model_fields}
        cold = ColdHost.model_validate(made)
        more = [np.average([cold.behind(bytes_) for bytes_ in own.moved], weights=own.often) for own in heard]
        return np.asarray(inside + constants["host_seconds"] + np.array(more))

    # what lies between ops is the difference of two steps, and uncertain by some percent of these: ops are met with it
    found, _ = fit(model, inside + np.array([own.between for own in heard]), HOST_START, bounds=HOST_BOUNDS)
    return found


def _of_deeper(rows: Sequence[Row]) -> float:
    """Seconds of an op more: a GPU's host runs ahead of it, so that all of its time is the host's own.

    What a step costs besides its ops is the same at every depth. (Measurements of one depth, of 2026-11-27 and before,
    tell only what lies between the device's ops: the host takes no less.)
    """
    few, *_, many = sorted(rows, key=lambda row: int(row["ops"]))
    return max(0.0, float(many["seconds"] - few["seconds"])) / int(many["ops"] - few["ops"])


def _beside(row: Row) -> float:
    """Seconds of the host's for an op, beside what it takes inside."""
    return max(0.0, float(row["seconds"] - row["seconds_inside_ops"])) / int(row["ops"])


@dataclass(frozen=True)
class _Between:
    """What the host does from op to op of one model, in seconds an op, and of its kinds of ops what they move."""

    between: float
    inside: float
    """Seconds of a mean op itself."""
    moved: list[float]
    """Bytes of an op, by kind."""
    often: list[float]


def _between_ops(data: Mapping[str, Any]) -> list[_Between]:
    """Of each model whose ops were timed."""
    models: dict[tuple[Any, ...], list[Row]] = {}
    for row in in_company(data["kernels"]):
        models.setdefault((row.get("family"), row["hidden"], row["tokens"], *row["grid"].values()), []).append(row)
    found = []
    for rows in models.values():
        ops = [row for row in rows if row["name"] != BETWEEN]
        often = [float(op["repeats"]) for op in ops]
        inside = float(np.average([float(op["seconds"]) for op in ops], weights=often)) if ops else 0.0
        moved = [float(op["bytes"]) for op in ops]
        found += [_Between(float(row["seconds"]), inside, moved, often) for row in rows if row["name"] == BETWEEN]
    return found


def _median(seconds: Sequence[float]) -> Fitted:
    """Take the middle of times that should be equal; 0 if there are none."""
    value = float(np.median(seconds)) if seconds else 0.0
    error = float(np.std(seconds) / np.sqrt(len(seconds)) / value) if value else 0.0
    return Fitted(value, error, len(seconds))
