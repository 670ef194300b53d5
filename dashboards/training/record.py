"""What a training wrote of itself: `metrics.jsonl`, read on from where it was read last; how it ended.

The files come from strangers and may be written at this moment: a line is counted when its end is there, one that
is none of ours is left out and counted, and no more is kept than a page can draw.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from dashboards.catalog import Catalog, Entry
from twin.description.problems import DescriptionError, fail

METRICS, STOPPED = "metrics.jsonl", "stopped.json"
MAX_BYTES, MAX_LINE, CHUNK = 1 << 30, 1 << 16, 4 << 20
"""Of a file, of a line, and of what is read at a time."""
MAX_EVENTS = 2_000
"""Evaluations of each set, alerts, and times that the run went back: more are thinned or left out."""
FIGURES = (
    "loss",
    "gradient_norm",
    "learning_rate",
    "seconds",
    "tokens_per_second",
    "model_flops_utilisation",
    "memory_bytes",
)
"""Of each step, as floats; NaN where a line says nothing."""
VALIDATION = "validation_loss"
"""Name of the loss on held-out text; that of a set with a name is `validation_loss/NAME`."""
STEP_LINE = b'{"step": '
"""How a step's line begins, as `train` writes it: a million of them are read by Arrow."""
STEP_SCHEMA = pa.schema([("step", pa.int64()), *((name, pa.float64()) for name in FIGURES)])
MAX_WORDS = 300
FEW = 200
"""Lines that are read one by one."""
TAIL_BYTES = 1 << 16
"""Of the end of a file that tells in the list of runs how far a training is."""


@dataclass
class Record:
    """The steps of one training in order; columns have one length."""

    step: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in FIGURES})
    validation: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """By name of the metric, `validation_loss` the first: after how many steps, and the loss."""
    back: list[tuple[int, int]] = field(default_factory=list)
    """(from step, to step) of each time that the run went back to a checkpoint."""
    why: list[str] = field(default_factory=list)
    """The reason of each."""
    watched: bool = False
    """Whether another program wrote it, whose first step may be any."""
    bad_lines: int = 0
    read_bytes: int = 0
    inode: int = 0

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.step)

    def as_it_is(self) -> Record:
        """Return a copy: who draws it may hold its columns while the next line is read."""
        return replace(
            self,
            step=self.step[:],
            columns={name: column[:] for name, column in self.columns.items()},
            validation={name: list(found) for name, found in self.validation.items()},
            back=list(self.back),
            why=list(self.why),
        )

    def take_all(self, lines: list[bytes]) -> None:
        """Add what whole lines say; those of steps at once, if all are as `train` writes them."""
        steps = [line for line in lines if line.startswith(STEP_LINE) and len(line) <= MAX_LINE]
        if not (len(steps) > FEW and self._take_steps(steps)):
            for line in steps:
                self.take(line)
        for line in lines:
            if len(line) > MAX_LINE:
                self.bad_lines += 1
            elif line and not line.startswith(STEP_LINE):
                self.take(line)

    def _take_steps(self, lines: list[bytes]) -> bool:
        """Add lines of steps by Arrow; False, and nothing added, if any of them is not one."""
        options = arrow_json.ParseOptions(explicit_schema=STEP_SCHEMA, unexpected_field_behavior="ignore")
        try:
            found = arrow_json.read_json(pa.BufferReader(b"\n".join(lines) + b"\n"), parse_options=options)
            steps = found.column("step").to_numpy()
        except (pa.ArrowException, ValueError):
            return False
        if found.num_rows != len(lines) or found.column("step").null_count or steps.min() < 0 or steps.max() >= 1 << 40:
            return False
        self.step.frombytes(np.ascontiguousarray(steps, dtype=np.int64).tobytes())
        for name in FIGURES:
            values = found.column(name).to_numpy(zero_copy_only=False)
            self.columns[name].frombytes(np.ascontiguousarray(values, dtype=np.float64).tobytes())
        return True

    def take(self, text: bytes) -> None:
        """Add what a whole line says."""
        try:
            line = json.loads(text)
            self._take(line)
        except (ValueError, TypeError, OverflowError, RecursionError):
            self.bad_lines += 1

    def _take(self, line: Mapping[str, Any]) -> None:
        if not isinstance(line, dict):
            raise TypeError
        if "to_step" in line:
            if len(self.back) < MAX_EVENTS:
                self.back.append((whole(line.get("from_step", 0)), whole(line["to_step"])))
                self.why.append(str(line.get("why") or "")[:MAX_WORDS])
            return
        if "after_steps" in line:
            after = whole(line["after_steps"])
            for name, value in line.items():
                if name == VALIDATION or name.startswith(f"{VALIDATION}/"):
                    known = self.validation.setdefault(name[:60], [])
                    if len(known) < MAX_EVENTS and len(self.validation) <= 20:
                        known.append((after, _float(value)))
            return
        step = whole(line["step"])
        values = [math.nan if line.get(name) is None else _float(line[name]) for name in FIGURES]
        self.step.append(step)
        for name, value in zip(FIGURES, values, strict=True):
            self.columns[name].append(value)


def whole(value: Any) -> int:
    """Return a whole number from 0 of a stranger's file. Raises TypeError of anything else."""
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise TypeError
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


class Reader:
    """Keeps the records of some trainings, each read on as its file grows; the one read longest ago is forgotten.

    What it gives away is a copy, the same one until more is read: several visitors look at a training while it writes.
    """

    def __init__(self, most: int = 64) -> None:
        self._records: dict[str, tuple[Record, Record]] = {}
        """What is read on, and what was given away last."""
        self._lock = Lock()
        self._most = most

    def record(self, catalog: Catalog, entry: Entry) -> Record:
        """Return all that a training has written until now. Raises DescriptionError."""
        path = metrics_file(catalog, entry)
        with self._lock:
            record, given = self._records.pop(entry.name, (Record(), Record()))
            try:
                record = _read_on(record, path, entry.label)
            except OSError as error:
                raise fail(f"{entry.label}/{METRICS}", f"cannot be read: {error.strerror}") from None
            record.watched = entry.kind == "watch"
            if (record.inode, record.read_bytes) != (given.inode, given.read_bytes):
                given = record.as_it_is()
            self._records[entry.name] = record, given
            while len(self._records) > self._most:
                del self._records[next(iter(self._records))]
            return given


def metrics_file(catalog: Catalog, entry: Entry) -> Path:
    """Return where the metrics of a training are. Raises DescriptionError if there are none."""
    if entry.kind not in ("training", "watch"):
        raise fail(entry.label, f"is a {entry.kind}, not a training; choose one on the page Runs")
    path = catalog.file(entry, METRICS)
    if not path.is_file():
        raise fail(entry.label, "has written no metrics yet; `fourfold train` writes a line a step")
    return path


def _read_on(record: Record, path: Path, label: str) -> Record:
    stat = path.stat()
    if stat.st_size > MAX_BYTES:
        raise fail(f"{label}/{METRICS}", f"is larger than {MAX_BYTES:,} bytes")
    if stat.st_size < record.read_bytes or stat.st_ino != record.inode:
        record = Record(inode=stat.st_ino)  # the run began anew, or went back: its file was written again
    with path.open("rb") as file:
        file.seek(record.read_bytes)
        rest = b""
        while record.read_bytes + len(rest) < stat.st_size:
            rest += file.read(CHUNK)
            *lines, rest = rest.split(b"\n")
            record.read_bytes += sum(map(len, lines)) + len(lines)
            record.take_all(lines)
            if not lines:
                if len(rest) > CHUNK:
                    raise fail(f"{label}/{METRICS}", "has a line that does not end")
                break
    return record


@dataclass(frozen=True)
class Summary:
    """A training in a few figures, for the list of runs; None where it says nothing."""

    words: str = ""
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    percent_of_peak: float | None = None
    changed: float = 0.0


def summary_of(catalog: Catalog, entry: Entry) -> Summary:
    """Read the end of a training's file alone: how far it is, and its latest figures."""
    try:
        path = metrics_file(catalog, entry)
        stat = path.stat()
        return catalog.noted(entry, f"tail {stat.st_mtime_ns} {stat.st_size}", lambda: _tail(path, stat.st_mtime))
    except (DescriptionError, OSError):
        return Summary("no metrics yet")


def _tail(path: Path, changed: float) -> Summary:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).split(b"\n")[1 if path.stat().st_size > TAIL_BYTES else 0 : -1]
    record = Record()
    for line in lines:
        record.take(line)
    if not len(record):
        return Summary("no step yet", changed=changed)
    middle = {name: _median(record.columns[name]) for name in ("seconds", "tokens_per_second")}
    share = _median(record.columns["model_flops_utilisation"])
    words = f"{record.step[-1] + 1:,} steps, loss {record.columns['loss'][-1]:.4g}"
    return Summary(
        words, middle["seconds"], middle["tokens_per_second"], None if share is None else 100 * share, changed
    )


def _median(values: array[float]) -> float | None:
    known = sorted(value for value in values if not math.isnan(value))
    return known[len(known) // 2] if known else None


def ended(catalog: Catalog, entry: Entry) -> str:
    """Say whether a signal ended the training before its last step. Raises DescriptionError."""
    path = catalog.file(entry, STOPPED)
    if not path.is_file() or path.stat().st_size > MAX_LINE:
        return ""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"stopped by {str(found.get('signal', 'a signal'))[:40]}"
    except (ValueError, OSError, AttributeError, RecursionError):
        return "stopped"
