"""Predictions beside a user's measurements: collectives, matrix products, training iterations.

The kind of a table is told by its header:

* `machine,collective,library,ranks,bytes,microseconds`
* `device,m,n,k,microseconds`
* `nodes,gpus,global_batch_sequences,micro_batch_sequences,layers,hidden,heads,sequence_length,
  data_parallel,tensor_parallel,iteration_milliseconds` (simulated as y = tensor_parallel)

Further columns are carried along. Rows that the twin does not know (another library, an
unknown machine) are counted and named, never dropped in silence.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from twin.calibrate.collective_table import TABLE_MACHINES, wrapper_seconds
from twin.cost.collective import collective_cost
from twin.cost.gemm import gemm_seconds
from twin.cost.placement import Placement
from twin.description.device import Device
from twin.description.library import CollectiveKind
from twin.description.load import load_device, load_machine, names
from twin.description.machine import Machine
from twin.description.problems import DescriptionError, Problem, did_you_mean, fail
from twin.description.units import SUFFIXES, parse_quantity
from twin.engine.parallel import in_parallel
from twin.engine.simulate import simulate
from twin.schedule.kernels import Gemm
from twin.strategies import load_job

COLLECTIVES = ("machine", "collective", "library", "ranks", "bytes", "microseconds")
GEMMS = ("device", "m", "n", "k", "microseconds")
ITERATIONS = (
    "nodes",
    "gpus",
    "global_batch_sequences",
    "micro_batch_sequences",
    "layers",
    "hidden",
    "heads",
    "sequence_length",
    "data_parallel",
    "tensor_parallel",
    "iteration_milliseconds",
)
WORDS = {"machine", "collective", "library", "device", "nodes", "source"}
ITERATION_MACHINE = "dgx-a100"
VOCABULARY, VOCABULARY_MULTIPLE = 50257, 128
"""GPT-2's vocabulary; Megatron pads it to a multiple of 128 × tensor_parallel."""
MAX_ROWS = 200_000
SIZES = SUFFIXES["_bytes"]

Progress = Callable[[int, int], None]
TABLED: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
"""Collectives whose constants are calibrated; others are not compared with measurements."""


@dataclass(frozen=True)
class Group:
    """Errors of one group of rows; errors are |predicted − measured| / measured."""

    name: str
    count: int
    median: float
    mean: float
    p90: float
    bias: float
    """Mean of the signed errors."""


@dataclass(frozen=True)
class Validation:
    """A whole table compared."""

    kind: str
    groups: list[Group]
    rows: list[dict[str, Any]]
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason → number of rows."""


def validate_file(path: Path, *, workers: int = 1, progress: Progress = lambda _d, _a: None) -> Validation:
    """Compare the rows of a CSV file with predictions."""
    header, rows = _read(path)
    kinds: dict[tuple[str, ...], tuple[str, Callable[..., Any]]] = {
        COLLECTIVES: ("collectives", _collective),
        GEMMS: ("gemm", _gemm),
        ITERATIONS: ("iterations", _iteration),
    }
    for columns, (kind, predict) in kinds.items():
        if set(columns) <= set(header):
            measured = _numbers(path, rows, columns)
            answers = in_parallel(predict, measured, workers if kind == "iterations" else 1, progress)
            return _compare(kind, measured, answers, columns[-1])
    wanted = "; or ".join(",".join(columns) for columns in kinds)
    raise fail(str(path), f"the header is {','.join(header)[:200]!r}, which is none of: {wanted}")


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            header = [str(h).strip() for h in reader.fieldnames or []]
            rows = []
            for row in reader:
                rows.append(row)
                if len(rows) > MAX_ROWS:
                    raise fail(str(path), f"has more than {MAX_ROWS:,} rows")
    except OSError as error:
        raise fail(str(path), f"cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise fail(str(path), f"not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise fail(str(path), "has no rows")
    return header, rows


def _numbers(path: Path, rows: Sequence[Mapping[str, str]], columns: Iterable[str]) -> list[dict[str, Any]]:
    """Convert what must be a positive number, and report every cell that is not."""
    converted, problems = [], []
    for line, row in enumerate(rows, start=2):
        new: dict[str, Any] = dict(row)
        for column in columns:
            text = row.get(column)
            if column in WORDS:
                if not text:
                    problems.append(Problem(f"line {line}, {column}", "missing"))
                continue
            try:
                value = parse_quantity(text or "", SIZES if column == "bytes" else None)
            except ValueError:
                value = float("nan")
            if not (np.isfinite(value) and value > 0):
                problems.append(Problem(f"line {line}, {column}", "must be a number above 0", text))
            elif column != "bytes" and not column.endswith("seconds") and value != int(value):
                problems.append(Problem(f"line {line}, {column}", "must be a whole number", text))
            new[column] = value
        converted.append(new)
    if problems:
        raise DescriptionError(problems[:20], str(path))
    return converted


def _compare(
    kind: str, rows: list[dict[str, Any]], answers: list[tuple[float, str] | str], measured: str
) -> Validation:
    done, skipped = [], dict[str, int]()
    by_group: dict[str, list[float]] = {}
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, str):
            skipped[answer] = skipped.get(answer, 0) + 1
            continue
        seconds, group = answer
        scale = 1e3 if measured.endswith("milliseconds") else 1e6
        predicted = seconds * scale
        error = predicted / row[measured] - 1.0
        unit = measured.rsplit("_", maxsplit=1)[-1]
        done.append(
            {
                **row,
                "group": group,
                f"predicted_{unit}": predicted,
                f"measured_{unit}": row[measured],
                "predicted": predicted,
                "measured": row[measured],
                "error": error,
            }
        )
        by_group.setdefault(group, []).append(error)
    return Validation(kind, [summary(name, errors) for name, errors in by_group.items()], done, skipped)


def summary(name: str, errors: Sequence[float]) -> Group:
    """Summarise signed relative errors."""
    size = np.abs(np.array(errors))
    return Group(
        name,
        len(size),
        float(np.median(size)),
        float(size.mean()),
        float(np.percentile(size, 90)),
        float(np.mean(errors)),
    )


@lru_cache(maxsize=64)
def _machine(name: str) -> Machine | str:
    try:
        return load_machine(TABLE_MACHINES.get(name, name))
    except DescriptionError:
        return f"machine {name!r} is not known; give a name of `fourfold machines` or a path"


@lru_cache(maxsize=64)
def _device(name: str) -> Device | str:
    known = names("devices")
    if name in known:
        return load_device(name)
    return f"device {name!r} is not known; {did_you_mean(name, known)}"


def _collective(row: Mapping[str, Any]) -> tuple[float, str] | str:
    machine = _machine(row["machine"])
    if isinstance(machine, str):
        return machine
    library = machine.libraries.get(row["library"])
    if library is None:
        return f"{machine.name} has no library {row['library']!r} (it has {', '.join(machine.libraries)})"
    if row["collective"] not in TABLED:
        return f"collective {row['collective']!r} is not known"
    ranks = int(row["ranks"])
    if ranks > machine.nodes * machine.devices_per_node:
        return f"more ranks than {machine.name} has devices"
    cost = collective_cost(machine, library, row["collective"], row["bytes"], _placement(row["machine"], ranks))
    wrapper = wrapper_seconds(str(row.get("source", "")))
    span = "one node" if ranks <= machine.devices_per_node else "multi-node"
    return cost.seconds + wrapper, f"{row['machine']} {row['collective']} {row['library']}, {span}"


@lru_cache(maxsize=256)
def _placement(machine_name: str, ranks: int) -> Placement:
    machine = _machine(machine_name)
    assert isinstance(machine, Machine)
    return Placement.contiguous(ranks, machine.devices_per_node, machine.network.group_nodes)


def _gemm(row: Mapping[str, Any]) -> tuple[float, str] | str:
    device = _device(row["device"])
    if isinstance(device, str):
        return device
    gemm = Gemm(int(row["m"]), int(row["n"]), int(row["k"]), "TN")
    return gemm_seconds(device, gemm, tuned=False), row["device"]


def iteration_job(row: Mapping[str, Any]) -> dict[str, Any]:
    """Make the job of a Megatron-DeepSpeed iteration: fp16, full recomputation.

    Fused softmax, fused bias and dropout, and dropout 0.1 are Megatron's defaults.
    """

    def whole(key: str) -> int:
        return int(row[key])

    multiple = VOCABULARY_MULTIPLE * whole("tensor_parallel")
    vocabulary = -(-VOCABULARY // multiple) * multiple
    return {
        "name": "measured iteration",
        "model": {
            "layers": whole("layers"),
            "hidden": whole("hidden"),
            "heads": whole("heads"),
            "sequence": whole("sequence_length"),
            "vocabulary": vocabulary,
        },
        "machine": row.get("machine") or ITERATION_MACHINE,
        "ranks": whole("gpus"),
        "grid": {"data": whole("data_parallel"), "y": whole("tensor_parallel")},
        "batch": {"sequences": whole("global_batch_sequences"), "micro_sequences": whole("micro_batch_sequences")},
        "precision": "fp16",
        "attention": "fused_softmax",
        "dropout": 0.1,
        "fused_elementwise": True,
        "overlap": {"all_reduce": False},
    }


def _iteration(row: Mapping[str, Any]) -> tuple[float, str] | str:
    try:
        job = load_job(iteration_job(row))
    except DescriptionError as error:
        return str(error.problems[0])
    return simulate(job).step_seconds, str(row["nodes"])
