"""Recorded schedules: what a rank of the runtime did, in the op language, as a file.

A recording is JSON (gzipped if the name ends in .gz), one op a line: format and schema version, grid
and rank, the resolved job (none for a module of the user's own), and the ops. Equal micro-steps
are folded into one `repeat`. Reading trusts nothing: sizes are bounded, every number is checked, and each wait
must have its start.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from twin.description.files import write_whole
from twin.description.grid import Mesh
from twin.description.problems import DescriptionError, Problem, fail, shorten
from twin.schedule.ops import OWN_STREAMS, Compute, Op, Repeat, Schedule, Simple, Start
from twin.schedule.wire import FORMAT, SCHEMA_VERSION, RecordingFile, op_of, wire_of

MAX_FILE_BYTES = 256 << 20
"""Of a recording, unpacked."""
MAX_OPS = 5_000_000
MAX_SHOWN = 8
"""Problems that are told."""
MICRO = re.compile(r"micro(0|[1-9]\d*)/")


@dataclass(frozen=True)
class Recording:
    """The schedule of one rank of a mesh."""

    mesh: Mesh
    rank: int
    schedule: Schedule
    job: Mapping[str, Any] | None = None
    """As resolved, ready for `load_job`; None for a module of the user's own."""


def write_recording(path: Path, recording: Recording, *, overwrite: bool = False) -> None:
    """Write a recording, whole or not at all; gzipped if the name ends in .gz.

    An existing file is replaced only if `overwrite` is set and it is a recording itself.
    """
    if path.exists():
        if not overwrite:
            raise fail(str(path), "exists already; choose another file or pass --force")
        if not is_recording(path):
            raise fail(str(path), "is not a recorded schedule; it will not be replaced")
    data = _text(recording).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, 6, mtime=0)
    write_whole(path, data)


def _text(recording: Recording) -> str:
    head = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "rank": recording.rank,
        "grid": recording.mesh.by_axis(),
        "job": recording.job,
    }
    begin = json.dumps(head, allow_nan=False)[:-1]
    ops = ",\n".join(json.dumps(wire_of(op), allow_nan=False) for op in fold(recording.schedule))
    return f'{begin}, "ops": [\n{ops}\n]}}\n'


def is_recording(path: Path) -> bool:
    """Say whether a file begins as recordings do."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(100).startswith(f'{{"format": "{FORMAT}"'.encode())
    except (OSError, EOFError, zlib.error):
        return False


def read_recording(path: Path) -> Recording:
    """Read and check a recording; raises DescriptionError for anything else."""
    data = _unpacked(path)
    if not data.lstrip().startswith(b"{") or FORMAT.encode() not in data[:200]:
        raise fail(str(path), "is not a recorded schedule; `fourfold record` writes them")
    if b'"schema_version": 1,' in data[:200]:
        raise fail("schema_version", "an earlier Fourfold wrote it, without the kinds of work; record it again", 1)
    try:
        file = RecordingFile.model_validate_json(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        problems = [Problem(".".join(map(str, e["loc"])), e["msg"], shorten(e["input"])) for e in found[:MAX_SHOWN]]
        raise DescriptionError(problems, str(path)) from None
    mesh = Mesh(tuple(file.grid), tuple(file.grid.values()))
    if file.rank >= mesh.ranks:
        raise fail("rank", f"ranks of the grid are 0 to {mesh.ranks - 1}", file.rank)
    schedule = Schedule(tuple(op_of(op) for op in file.ops))
    if _count(schedule.ops) > MAX_OPS:
        raise fail("ops", f"are {_count(schedule.ops):,}; at most {MAX_OPS:,} can be simulated")
    check(schedule, mesh)
    # micro-steps are named in one way alone, so that a start and its wait agree, however they came
    return Recording(mesh, file.rank, Schedule(fold(schedule)), file.job)


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise fail(str(path), "no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise fail(str(path), f"cannot be read: {error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise fail(str(path), f"is larger than the {MAX_FILE_BYTES >> 20} MiB of a recording")
    return data


def _count(ops: Sequence[Op]) -> int:
    return sum(len(op.values) * _count(op.body) if isinstance(op, Repeat) else 1 for op in ops)


def check(schedule: Schedule, mesh: Mesh) -> None:
    """Check what an engine relies on: names are unique, and each start has one wait behind it.

    Raises DescriptionError with the first problems.
    """
    problems: list[Problem] = []
    seen: set[str] = set()
    flight: set[str] = set()
    for index, (name, op) in enumerate(schedule.named()):
        path = f"op {index} {name}"
        if isinstance(op, Compute | Start):
            if name in seen:
                problems.append(Problem(path, "has the name of an earlier op"))
            seen.add(name)
            if isinstance(op, Start):
                flight.add(name)
                if op.communicator in OWN_STREAMS:
                    continue
                if op.axis not in mesh.axes:
                    problems.append(Problem(path, f"is over {op.axis}, which is no axis of the grid", op.communicator))
                elif _joined(mesh, op.axis) == 1:
                    problems.append(Problem(path, f"is a collective over {op.axis}, which is one rank"))
        elif name in flight:
            flight.remove(name)
        else:
            why = "waits a second time" if name in seen else "waits for what was not started before"
            problems.append(Problem(path, why))
        if len(problems) > MAX_SHOWN:
            break
    problems += [Problem(name, "is started and never waited for") for name in sorted(flight)]
    if problems:
        raise DescriptionError(problems[:MAX_SHOWN], "schedule")


def _joined(mesh: Mesh, axis: str) -> int:
    """Ranks of an axis; those that share sequences sum gradients with those of data."""
    shared = mesh.size("context") if axis == "data" and "context" in mesh.axes else 1
    return mesh.size(axis) * shared


def fold(schedule: Schedule) -> tuple[Op, ...]:
    """Write every micro-step as a `Repeat`, those that are equal and follow each other as one."""
    folded: list[Op] = []
    for micro, ops in _micro_steps(schedule):
        if micro is None:
            folded += ops
            continue
        body = tuple(replace(op, name=MICRO.sub("micro{micro}/", op.name, count=1)) for op in ops)
        last = folded[-1] if folded else None
        if isinstance(last, Repeat) and last.body == body and last.values[-1] == micro - 1:
            folded[-1] = replace(last, values=(*last.values, micro))
        else:
            folded.append(Repeat("micro", (micro,), body))
    return tuple(folded)


def _micro_steps(schedule: Schedule) -> Iterator[tuple[int | None, list[Simple]]]:
    """Yield the ops of each micro-step, and those outside of them, in order."""
    micro: int | None = None
    ops: list[Simple] = []
    for name, op in schedule.named():
        match = MICRO.match(name)
        here = int(match[1]) if match else None
        if here != micro and ops:
            yield micro, ops
            ops = []
        micro = here
        ops.append(replace(op, name=name))
    if ops:
        yield micro, ops
