"""Small traces made by hand, for tests of `compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from twin import __version__
from twin.compare.compare import Comparison, compare
from twin.description.problems import DescriptionError
from twin.strategies import load_job
from twin.trace.store import write_trace
from twin.trace.table import SCHEMA

JOB = {
    "name": "by-hand",
    "machine": "laptop",
    "ranks": 2,
    "grid": {"x": 2},
    "model": {"layers": 1, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 32},
    "batch": {"sequences": 2, "micro_sequences": 1},
    "precision": "fp32",
}


@dataclass(frozen=True)
class Row:
    """One event; `arrival` only of collectives."""

    op: str
    kind: str
    start: int
    end: int
    arrival: int | None = None
    phase: str = "fwd"
    axis: str | None = None
    stream: str | None = None
    bytes: float = 8.0


def table(ranks: Mapping[int, Sequence[Row]], step: int = 0) -> pa.Table:
    """The event table of one step."""
    rows = [(rank, row) for rank, part in ranks.items() for row in part]
    columns: dict[str, list[Any]] = {
        "rank": [rank for rank, _ in rows],
        "stream": [(r.stream or r.axis) if r.kind == "collective" else "compute" for _, r in rows],
        "op": [f"step{step}/{r.op}" for _, r in rows],
        "kind": [r.kind for _, r in rows],
        "name": ["/".join(r.op.removesuffix("/wait").split("/")[2:]) for _, r in rows],
        "phase": [r.phase for _, r in rows],
        "layer": [None] * len(rows),
        "step": [step] * len(rows),
        "micro": [0] * len(rows),
        "axis": [r.axis for _, r in rows],
        "group": [None if r.axis is None else 0 for _, r in rows],
        "bytes": [0.0 if r.kind == "wait" else r.bytes for _, r in rows],
        "flops": [0.0] * len(rows),
        "start_ns": [r.start for _, r in rows],
        "end_ns": [r.end for _, r in rows],
        "arrival_ns": [r.start if r.arrival is None else r.arrival for _, r in rows],
    }
    return pa.table({f.name: pa.array(columns[f.name]).cast(f.type) for f in SCHEMA}, schema=SCHEMA)


@cache
def _described(job: str) -> dict[str, Any]:
    return load_job(json.loads(job)).model_dump(mode="json", by_alias=True)


def manifest(kind: str, job: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """What a run says of itself."""
    described = _described(json.dumps({**JOB, **(job or {})}))
    clock = {"method": "by hand", "uncertainty_ns": 0}
    return {"kind": kind, "job": described, "code_version": __version__, "clock": clock, **changes}


def write(folder: Path, kind: str, *tables: pa.Table, classes: pa.Table | None = None, **changes: Any) -> Path:
    """Write a run."""
    events = pa.concat_tables(tables).unify_dictionaries()
    write_trace(folder, manifest(kind, **changes), events, classes)
    return folder


def collective(
    op: str,
    arrival: int,
    start: int,
    end: int,
    waited: tuple[int, int],
    phase: str = "fwd",
    axis: str = "x",
    stream: str | None = None,
) -> list[Row]:
    """A collective and the wait for it."""
    return [
        Row(op, "collective", start, end, arrival, phase, axis, stream),
        Row(f"{op}/wait", "wait", *waited, None, phase, axis),
    ]


def by_hand_predicted() -> dict[int, list[Row]]:
    """Two equal ranks, 18 ns: a product, an all-reduce of 5 ns, a norm."""
    rank = [
        Row("micro0/fwd/qkv/gemm", "compute", 0, 10),
        *collective("micro0/fwd/qkv/all_reduce_x", 10, 10, 15, (10, 15)),
        Row("micro0/fwd/norm1/normalize", "compute", 15, 18),
    ]
    return {0: rank, 1: rank}


def by_hand_measured(later: int = 0) -> dict[int, list[Row]]:
    """33 ns; rank 1 begins 5 ns late, and rank 0 waits for it."""
    at = later + 100
    return {
        0: [
            Row("micro0/fwd/qkv/gemm", "compute", at, at + 12),
            *collective("micro0/fwd/qkv/all_reduce_x", at + 13, at + 20, at + 26, (at + 14, at + 27)),
            Row("micro0/fwd/norm1/normalize", "compute", at + 30, at + 33),
        ],
        1: [
            Row("micro0/fwd/qkv/gemm", "compute", at + 5, at + 18),
            *collective("micro0/fwd/qkv/all_reduce_x", at + 20, at + 20, at + 26, (at + 21, at + 26)),
            Row("micro0/fwd/norm1/normalize", "compute", at + 26, at + 28),
        ],
    }


def measured(tmp_path: Path, *tables: pa.Table, **changes: Any) -> Path:
    return write(tmp_path / "m", "measured", *(tables or [table(by_hand_measured())]), **changes)


def refused(*runs: Path, step: int | None = None) -> str:
    with pytest.raises(DescriptionError) as caught:
        compare(*runs, step=step)
    return str(caught.value)


def exact(found: Comparison) -> Comparison:
    """Whatever is left out, what is shown adds up."""
    for terms in (found.terms, found.phases):
        assert sum(t.difference_seconds for t in terms) == pytest.approx(found.difference_seconds, rel=1e-9)
    return found


def changed(ranks: dict[int, list[Row]], word: str, only: int | None = None, **fields: Any) -> dict[int, list[Row]]:
    """Rows whose op ends in a word, with other values."""
    return {
        r: [replace(row, **fields) if row.op.endswith(word) and only in (None, r) else row for row in rows]
        for r, rows in ranks.items()
    }
