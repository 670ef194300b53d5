"""Predictions beside a user's measurements: collectives, matrix products, training iterations.

The kind of a table is told by its header:

* `machine,collective,library,ranks,bytes,microseconds`, and `nodes`, where ranks do not fill node after node
* `device,m,n,k,microseconds`
* training iterations of Megatron-DeepSpeed (`megatron.COLUMNS`) and of FSDP (`mpt.COLUMNS`)

A YAML file holds published training runs (`training_runs`), or jobs and what was measured of them (`own_runs`).
Further columns are carried along. Rows that the twin does not know (another library, an unknown machine) are counted
and named, never dropped in silence.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from twin.calibrate.collective_table import MIB, NCCL_TESTS, TABLE_MACHINES, TRAYS, as_chosen, placed, wrapper_seconds
from twin.calibrate.unfilled import holds_data, with_empty_operands
from twin.cost.collective import collective_cost
from twin.cost.gemm import gemm_seconds
from twin.cost.placement import Placement
from twin.description.device import Device
from twin.description.library import CollectiveKind
from twin.description.load import load_device, load_machine, names
from twin.description.machine import Machine
from twin.description.problems import DescriptionError, Problem, did_you_mean, fail
from twin.description.strict_yaml import read_yaml
from twin.description.units import SUFFIXES, parse_quantity
from twin.engine.parallel import in_parallel
from twin.schedule.kernels import Gemm
from twin.validate import megatron, mpt, offloaded
from twin.validate.groups import Progress, Validation, summary
from twin.validate.iterations import Iteration, compare_iterations
from twin.validate.own_runs import own_runs, peak_memory
from twin.validate.published_pieces import compare_pieces
from twin.validate.training_runs import published_rows, training_runs

COLLECTIVES = ("machine", "collective", "library", "ranks", "bytes", "microseconds")
GEMMS = ("device", "m", "n", "k", "microseconds")
WORDS = {"machine", "collective", "library", "device", "nodes", "source", "precision", "folder"}
SWITCHES = {"recompute"}
FRACTIONS = {"bytes", "offload_ratio", "iteration_ms"}
"""Columns of numbers that need not be whole, besides those of seconds."""
MAX_ROWS = 200_000
SIZES = SUFFIXES["_bytes"]

TABLED: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send")
"""Collectives that are compared with measurements."""
FORCED = "algorithms that were forced upon the library"
SMALL, LARGE = 4 * MIB, 64 * MIB
"""Below, latencies and choices of protocol decide; from there on, bandwidth."""


def validate_file(
    path: Path, *, strategy: str | None = None, workers: int = 1, progress: Progress = lambda _d, _a: None
) -> Validation:
    """Compare the rows of a CSV file, or of a YAML file of training runs, with predictions.

    `strategy`: which of `mpt.READINGS` iterations of FSDP are read as, where the file has these.
    """
    if strategy not in (None, *mpt.READINGS):
        raise fail("strategy", f"must be one of {', '.join(mpt.READINGS)}", strategy)
    if path.suffix in {".yaml", ".yml"}:
        _no_reading(path, strategy)
        return _training_runs(path, workers, progress)
    header, rows = _read(path)
    if strategy is not None and set(mpt.COLUMNS) <= set(header):
        fsdp = [mpt.iteration(row, strategy) for row in _numbers(path, rows, mpt.COLUMNS)]
        return compare_iterations(fsdp, "milliseconds", workers=workers, progress=progress)
    _no_reading(path, strategy)
    for columns, reader in ITERATIONS.items():
        if set(columns) <= set(header):
            iterations = [reader(row) for row in _numbers(path, rows, columns)]
            return compare_iterations(iterations, "milliseconds", workers=workers, progress=progress)
    for columns, (kind, predict) in PIECES.items():
        if set(columns) <= set(header):
            measured = _numbers(path, rows, columns)
            return _compare(kind, measured, in_parallel(predict, measured, 1, progress))
    wanted = "; or ".join(",".join(columns) for columns in (*PIECES, *ITERATIONS))
    raise fail(str(path), f"the header is {','.join(header)[:200]!r}, which is none of: {wanted}")


def _no_reading(path: Path, strategy: str | None) -> None:
    if strategy is not None:
        remedy = f"is of tables of FSDP iterations ({','.join(mpt.COLUMNS[:3])},…), and {path} is none; leave it out"
        raise fail("--strategy", remedy, strategy)


def _training_runs(path: Path, workers: int, progress: Progress) -> Validation:
    if "jobs" in (data := read_yaml(path)):
        runs = own_runs(data, str(path))
        found = compare_iterations(runs, "seconds", workers=workers, progress=progress)
        return replace(found, pieces=peak_memory(runs))
    rows = published_rows(data, str(path))
    found = compare_iterations(training_runs(rows), "seconds", workers=workers, progress=progress)
    pieces, left_out = compare_pieces(rows)
    return replace(found, pieces=pieces, skipped=found.skipped | left_out)


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
            if column in SWITCHES:
                new[column] = (text or "").strip().lower() == "true"
                if (text or "").strip().lower() not in {"true", "false"}:
                    problems.append(Problem(f"line {line}, {column}", "must be True or False", text))
                continue
            try:
                value = parse_quantity(text or "", SIZES if column == "bytes" else None)
            except ValueError:
                value = float("nan")
            if not (np.isfinite(value) and value > 0):
                problems.append(Problem(f"line {line}, {column}", "must be a number above 0", text))
            elif column not in FRACTIONS and not column.endswith("seconds") and value != int(value):
                problems.append(Problem(f"line {line}, {column}", "must be a whole number", text))
            new[column] = value
        converted.append(new)
    if problems:
        raise DescriptionError(problems[:20], str(path))
    return converted


def _compare(kind: str, rows: list[dict[str, Any]], answers: list[tuple[float, str] | str]) -> Validation:
    done, skipped = [], dict[str, int]()
    by_group: dict[str, list[float]] = {}
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, str):
            skipped[answer] = skipped.get(answer, 0) + 1
            continue
        seconds, group = answer
        predicted, measured = seconds * 1e6, row["microseconds"]
        error = predicted / measured - 1.0
        done.append(
            {
                **row,
                "group": group,
                "predicted_microseconds": predicted,
                "measured_microseconds": measured,
                "predicted": predicted,
                "measured": measured,
                "error": error,
            }
        )
        by_group.setdefault(group, []).append(error)
    return Validation(kind, [summary(name, errors) for name, errors in by_group.items()], done, skipped)


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
    kind = NCCL_TESTS.get(row["collective"], row["collective"])
    if kind not in TABLED:
        return f"collective {row['collective']!r} is not known"
    if not as_chosen(row):
        sharp = "SHARP" in str(row["algorithm"])
        return "reductions in the switches between nodes (SHARP), which are not modelled" if sharp else FORCED
    placement = _where(row, machine, kind)
    if isinstance(placement, str):
        return placement
    cost = collective_cost(machine, library, kind, row["bytes"], placement)
    wrapper = wrapper_seconds(str(row.get("source", "")))
    span = "one node" if placement.node_count == 1 else "multi-node"
    size = "below 4 MiB" if row["bytes"] < SMALL else "from 64 MiB" if row["bytes"] >= LARGE else "from 4 MiB"
    return cost.seconds + wrapper, f"{row['machine']} {row['collective']} {row['library']}, {span}, {size}"


def _where(row: Mapping[str, Any], machine: Machine, kind: CollectiveKind) -> Placement | str:
    ranks, most = int(row["ranks"]), machine.devices_per_node
    nodes = "" if row["machine"] in TRAYS else str(row.get("nodes") or "").strip()
    if nodes and not (nodes.isdecimal() and 0 < int(nodes) <= ranks <= int(nodes) * most):
        return f"ranks that do not fit on the nodes that they are said to be on, of {machine.name}"
    if max(ranks, int(nodes or 0) * most) > machine.nodes * most:
        return f"more ranks than {machine.name} has devices"
    return _placement(row["machine"], kind, ranks, int(nodes) if nodes else None)


@lru_cache(maxsize=1024)
def _placement(machine_name: str, kind: CollectiveKind, ranks: int, nodes: int | None) -> Placement:
    machine = _machine(machine_name)
    assert isinstance(machine, Machine)
    return placed(machine, kind, ranks, nodes)


def _gemm(row: Mapping[str, Any]) -> tuple[float, str] | str:
    device = _device(row["device"])
    if isinstance(device, str):
        return device
    if str(row.get("dtype", "")).startswith("fp8"):
        return "products of fp8"
    if not holds_data(row.get("operands")):
        device = with_empty_operands(device)
    gemm = Gemm(int(row["m"]), int(row["n"]), int(row["k"]), "TN")
    return gemm_seconds(device, gemm, tuned=False), row["device"]


PIECES: dict[tuple[str, ...], tuple[str, Callable[..., tuple[float, str] | str]]] = {
    COLLECTIVES: ("collectives", _collective),
    GEMMS: ("gemm", _gemm),
}
"""Columns of tables of pieces of a step → what they are, and what predicts a row's seconds and group."""
ITERATIONS: dict[tuple[str, ...], Callable[[dict[str, Any]], Iteration]] = {
    megatron.COLUMNS: megatron.iteration,
    mpt.COLUMNS: mpt.iteration,
    offloaded.COLUMNS: offloaded.offloaded_iteration,
}
"""Columns of tables of training iterations → what reads a row."""
