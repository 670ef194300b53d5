"""The directory of a study: what it asks, a line for each training that is done, and in the end tables and a page.

    memorize.json     what the study is
    cells.jsonl       a line for each training that is done, appended and synced
    results.json, cells.csv, texts.csv, memorize.html     when all are done

A line that was cut short by a crash is dropped when the study goes on, and its training done again. Only one process
writes at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from twin import __version__
from twin.description.files import write_whole
from twin.description.problems import fail
from twin.trace import directory

MANIFEST, LOG, LOCK = "memorize.json", "cells.jsonl", ".lock"
TABLES = ("results.json", "cells.csv", "texts.csv", "memorize.html")
KIND = "memorize"
HALF_WRITTEN = ".[0-9]*.????????.*"
"""Temporary files of `twin.description.files`."""


@dataclass
class StudyDirectory:
    """An open directory of a study, locked for this process."""

    path: Path
    log: IO[bytes]
    done: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Trainings that are done, by number."""

    def add(self, figures: dict[str, Any]) -> None:
        """Keep what came out of a training."""
        line = json.dumps(figures, allow_nan=False, separators=(",", ":"))
        self.log.write(line.encode() + b"\n")
        self.log.flush()
        os.fsync(self.log.fileno())
        self.done[figures["number"]] = figures


@contextmanager
def study_directory(path: Path, manifest: dict[str, Any], *, force: bool) -> Iterator[StudyDirectory]:
    """Open the directory of a study, new or to go on where it stopped.

    `manifest` says in `decides` what must be the same to go on. With `force` the results of another study are
    removed, but nothing that a study did not write.
    """
    manifest = {"kind": KIND, "version": __version__, **manifest}
    directory.check_place(path, MANIFEST)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(str(path), f"cannot be made: {error.strerror}; choose another --out") from None
    with (path / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise fail(str(path), "another process works on it; wait, or choose another --out") from None
        found = _manifest(path)
        if found is not None and force:
            for name in (LOG, *TABLES, MANIFEST):
                (path / name).unlink(missing_ok=True)
            found = None
        if found is None:
            write_whole(path / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        else:
            _check_same(path, found, manifest)
        for half in path.glob(HALF_WRITTEN):
            half.unlink()  # a killed process could not; no other one writes here now
        done = _read_log(path / LOG)
        with (path / LOG).open("ab") as log:
            yield StudyDirectory(path, log, done)


def check_place(path: Path, manifest: dict[str, Any], *, force: bool) -> None:
    """Refuse, before anything is made, a place that holds something else, or another study."""
    directory.check_place(path, MANIFEST)
    found = _manifest(path) if path.exists() else None
    if found is not None and not force:
        _check_same(path, found, {"version": __version__, **manifest})


def _manifest(path: Path) -> dict[str, Any] | None:
    file = path / MANIFEST
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise fail(str(file), "was not written by `fourfold memorize`; choose another --out")
    return found


def _check_same(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    remedy = "start over with --force, or choose another --out"
    if found.get("version") != wanted["version"]:
        raise fail(str(path), f"was written by version {found.get('version')} of Fourfold; {remedy}")
    if found.get("decides") != wanted["decides"]:
        raise fail(str(path), f"holds another study, or this one before it or its texts were changed; {remedy}")


def _read_log(path: Path) -> dict[int, dict[str, Any]]:
    """Read the trainings that are done; a last line that was cut short is cut off the file."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
    done: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            figures: dict[str, Any] = json.loads(line)
            done[int(figures["number"])] = figures
        except (ValueError, KeyError, TypeError, RecursionError):
            raise fail(f"{path}, line {number}", "is damaged; start over with --force") from None
    return done
