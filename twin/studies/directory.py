"""The directory of a study: what it asks, one line for each finished point, and in the end tables.

    study.json       what the study is, and from which files and code its points come
    points.jsonl     one line for each finished point, appended and synced
    jobs/00001.yaml  the job of each point
    points.parquet, table.csv, study.html   when all points are finished

A point is finished when its line is on disk. A line that was cut short by a crash is dropped
when the study goes on, and its point computed again. Only one process writes at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml

import topologies
import twin
from twin import __version__
from twin.description.files import write_whole
from twin.description.problems import fail
from twin.studies.compute import Answer
from twin.trace.directory import check_place

MANIFEST, LOG, JOBS, LOCK = "study.json", "points.jsonl", "jobs", ".lock"
TABLES = ("points.parquet", "table.csv", "study.html")
SCHEMA_VERSION = 1
HALF_WRITTEN = ".[0-9]*.????????.*"
"""Temporary files of `twin.description.files`."""
DECIDING = (
    "description/**/*.py",
    "schedule/**/*.py",
    "cost/**/*.py",
    "engine/**/*.py",
    "strategies/**/*.py",
    "search/*.py",
    "studies/compute.py",
    "studies/formulas.py",
    "studies/points.py",
    "studies/sensitivity.py",
)
"""Parts of the twin that decide what a point's figures are."""


@cache
def code_digest() -> str:
    """Digest of the code and the packaged machines that decide the figures of a point."""
    root = Path(twin.__file__).parent
    files = [file for part in DECIDING for file in root.glob(part)]
    files += Path(topologies.__file__).parent.rglob("*.yaml")
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"{__version__}+{total.hexdigest()[:16]}"


@dataclass
class StudyDirectory:
    """An open directory of a study, locked for this process."""

    path: Path
    manifest: dict[str, Any]
    log: IO[bytes]
    answers: dict[int, Answer] = field(default_factory=dict)
    """Finished points, by number."""

    def add(self, answer: Answer) -> None:
        """Write a finished point: its job file first, then the line that makes it finished."""
        number = answer["number"]
        if answer["job"]:
            write_whole(self.path / JOBS / f"{number:05d}.yaml", job_text(answer))
        line = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self.log.write(line.encode() + b"\n")
        self.log.flush()
        os.fsync(self.log.fileno())
        self.answers[number] = answer

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one of the tables, whole."""
        write_whole(self.path / name, content)
        return self.path / name


def job_text(answer: Answer) -> str:
    """Return the job file of a point."""
    shown = yaml.safe_dump(answer["job"], sort_keys=False, allow_unicode=True, width=110)
    return f"# Point {answer['number']} of a study; `fourfold simulate` takes it as it is.\n{shown}"


@contextmanager
def study_directory(path: Path, manifest: dict[str, Any], *, force: bool) -> Iterator[StudyDirectory]:
    """Open the directory of a study, new or to go on where it stopped.

    `manifest` holds the study's `digest` and number of `points`. With `force` the results of
    another study are removed, but nothing that a study did not write.
    """
    manifest = {"schema_version": SCHEMA_VERSION, "kind": "study", **manifest, "code": code_digest()}
    check_place(path, MANIFEST)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(str(path), f"cannot be made: {error.strerror}; choose another --out") from None
    with (path / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            remedy = "another process is computing this study; wait for it, or choose another --out"
            raise fail(str(path), remedy) from None
        found = _manifest(path)
        if found is not None and force:
            _remove(path)
            found = None
        if found is None:
            write_whole(path / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        else:
            _check_same(path, found, manifest)
        (path / JOBS).mkdir(exist_ok=True)
        for half in [*path.glob(HALF_WRITTEN), *(path / JOBS).glob(HALF_WRITTEN)]:
            half.unlink()  # a killed process could not; no other one writes here now
        answers = read_log(path / LOG)
        with (path / LOG).open("ab") as log:
            yield StudyDirectory(path, found or manifest, log, answers)


def _manifest(path: Path) -> dict[str, Any] | None:
    file = path / MANIFEST
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("kind") != "study":
        raise fail(str(file), "was not written by `fourfold study`; choose another --out")
    return found


def _check_same(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    remedy = "start over with --force, or choose another --out"
    if found.get("schema_version") != SCHEMA_VERSION:
        raise fail(str(path), f"was written by another version of Fourfold; {remedy}")
    if found.get("digest") != wanted["digest"] or found.get("points") != wanted["points"]:
        raise fail(str(path), f"holds another study, or this one before it was changed; {remedy}")
    if found.get("code") != wanted["code"]:
        raise fail(
            str(path),
            f"was computed by {found.get('code')}, and this is {wanted['code']}: "
            f"figures of both must not be mixed; {remedy}",
        )


def _remove(path: Path) -> None:
    """Remove what studies write, and nothing else."""
    for name in (LOG, *TABLES):
        (path / name).unlink(missing_ok=True)
    for file in (path / JOBS).glob("[0-9][0-9][0-9][0-9][0-9].yaml"):
        file.unlink()
    (path / MANIFEST).unlink(missing_ok=True)


def read_log(path: Path) -> dict[int, Answer]:
    """Read the finished points; a last line that was cut short is cut off the file.

    Points that crashed are left out: they are worth another try.
    """
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
    answers: dict[int, Answer] = {}
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            answer: Answer = json.loads(line)
            answers[int(answer["number"])] = answer
        except (ValueError, KeyError, TypeError, RecursionError):
            raise fail(f"{path}, line {number}", "is damaged; start over with --force") from None
    return {n: a for n, a in answers.items() if a.get("status") != "crashed"}
