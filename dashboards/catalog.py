"""What lies under the root: runs, searches and studies, each with a name that is safe in an address.

Pages ask for an entry by its name, a hash of its path within the root, so no request can name a
path. What is listed is contained in the root after symbolic links are followed. Whatever is read
comes from strangers and is read strictly (`twin.trace.store`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar

from twin.description.problems import DescriptionError, fail
from twin.trace.store import CLASSES, EVENTS, MANIFEST, Trace, read_manifest, read_trace

Kind = Literal["predicted", "measured", "search", "study", "watch", "training"]
Head = Literal["search", "study", "watch", "training"]
RANKING, STUDY, WATCH, RUN = "ranking.json", "study.json", "watch.json", "run.json"
MAX_DEPTH, MAX_DIRECTORIES, MAX_ENTRIES = 5, 20_000, 2_000
"""Of what is looked through at each visit: a root that is a whole file system must not stop the server."""
MAX_JSON_BYTES = 64 << 20
"""A ranking of all candidates has some megabytes; more takes seconds to parse."""
NAME_LENGTH = 12
"""Hexadecimal digits, 48 bits: no two of a few thousand entries are called the same."""
MAX_CACHED = 8
"""Tables and pairs that stay in memory, of the few runs that are looked at: each may have some hundred megabytes."""
MAX_NOTES = 8_000
"""Figures that stay in memory, a few of each entry."""
ANEW_SECONDS = 30.0
"""After so long, who looks at what was found has all looked through again: what was written meanwhile is there too."""
Value = TypeVar("Value")
HEADS: tuple[tuple[str, Head | None], ...] = (
    (MANIFEST, None),
    (RANKING, "search"),
    (STUDY, "study"),
    (WATCH, "watch"),
    (RUN, "training"),
)
"""The file that tells what a directory is, and what that is; a run's manifest says it itself."""


@dataclass(frozen=True)
class Entry:
    """One thing that can be opened."""

    name: str
    """What addresses call it."""
    label: str
    """Its path within the root."""
    kind: Kind | None
    """None if it cannot be read; `problem` says why."""
    path: Path
    changed: float
    """When its manifest was last changed, seconds since the epoch."""
    head: dict[str, Any]
    """Its manifest, ranking or study file."""
    problem: str = ""


class Catalog:
    """Finds and opens entries; keeps a few opened ones."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._heads: dict[Path, tuple[tuple[float, int], Entry]] = {}
        self._cache: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._notes: dict[tuple[Any, ...], Any] = {}
        self._seen: list[Entry] = []
        self._listed = -math.inf
        self._lock = Lock()

    @property
    def root(self) -> Path:
        """The directory that everything is in."""
        return self._root

    def entries(self) -> list[Entry]:
        """List everything, newest first."""
        begin = time.monotonic()
        found = [entry for path in self._directories() if (entry := self._entry(path))]
        self._seen = sorted(found[:MAX_ENTRIES], key=lambda e: (-e.changed, e.label))
        self._listed = begin
        return list(self._seen)

    def seen(self) -> list[Entry]:
        """List what was found lately: for who looks every few seconds at a few that are known."""
        return list(self._seen) if time.monotonic() - self._listed < ANEW_SECONDS else self.entries()

    def latest(self, entry: Entry) -> Entry:
        """Return an entry that was found before as its files say it now; as it was, if they are gone."""
        return self._entry(entry.path) or entry

    def entry(self, name: str) -> Entry:
        """Return an entry by its name. Raises DescriptionError if there is none, or it is damaged."""
        for found in self.entries():
            if found.name == name:
                if found.kind is None:
                    raise fail(found.label, found.problem)
                return found
        raise fail("run", "is not in the directory any more; choose another on the page Runs", name[:40])

    def kept(self, entry: Entry, what: str, make: Callable[[], Value]) -> Value:
        """Return what was made of an entry before, or make it; the oldest is forgotten first."""
        key = (entry.name, entry.changed, what)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                found: Value = self._cache[key]
                return found
        made = make()
        with self._lock:
            self._cache[key] = made
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return made

    def noted(self, entry: Entry, what: str, make: Callable[[], Value]) -> Value:
        """Return a figure or a few words of an entry known before, or find them; thousands are kept."""
        key = (entry.name, entry.changed, what)
        if key not in self._notes:
            if len(self._notes) >= MAX_NOTES:
                self._notes.clear()
            self._notes[key] = make()
        found: Value = self._notes[key]
        return found

    def trace(self, entry: Entry) -> Trace:
        """Read a run. Raises DescriptionError if it is damaged, or its files lie elsewhere."""
        self.check_files(entry)
        return read_trace(entry.path)

    def check_files(self, entry: Entry) -> None:
        """Refuse a run whose files lie outside the root. Raises DescriptionError."""
        for name in (MANIFEST, EVENTS, CLASSES):
            self.file(entry, name)

    def file(self, entry: Entry, name: str) -> Path:
        """Return the path of a file of an entry. Raises DescriptionError if it leads out of the root."""
        path = entry.path / name
        if not path.resolve().is_relative_to(self._root):
            raise fail(f"{entry.label}/{name}", "is a link to a place outside the directory of runs")
        return path

    def _directories(self) -> Iterator[Path]:
        """Directories under the root, not through links, not too deep."""
        for seen, (folder, inside, _) in enumerate(os.walk(self._root, followlinks=False)):
            here = Path(folder)
            depth = len(here.relative_to(self._root).parts)
            inside[:] = sorted(d for d in inside if not d.startswith(".")) if depth < MAX_DEPTH else []
            if seen >= MAX_DIRECTORIES:
                return
            yield here

    def _entry(self, path: Path) -> Entry | None:
        for head, kind in HEADS:
            file = path / head
            if not file.is_file():
                continue
            if head == MANIFEST and not (path / EVENTS).exists():
                return None  # a checkpoint or a data set has a manifest too
            stat = file.stat()
            mark = (stat.st_mtime, stat.st_size)
            known = self._heads.get(path)
            if known is None or known[0] != mark:
                known = self._heads[path] = (mark, self._read(path, file, kind, stat.st_mtime))
            return known[1]
        return None

    def _read(self, path: Path, file: Path, kind: Head | None, changed: float) -> Entry:
        label = str(path.relative_to(self._root)) or path.name
        name = hashlib.sha256(label.encode()).hexdigest()[:NAME_LENGTH]
        try:
            if not file.resolve().is_relative_to(self._root):
                raise fail(label, "is a link to a place outside the directory of runs")
            if kind is not None:
                return Entry(name, label, kind, path, changed, read_json(file))
            head = read_manifest(path)
            found = head.get("kind")
            if found not in ("predicted", "measured"):
                raise fail(label, f"kind is {str(found)[:40]!r}; expected predicted or measured")
            return Entry(name, label, found, path, changed, head)
        except (DescriptionError, OSError) as error:
            why = "; ".join(map(str, error.problems)) if isinstance(error, DescriptionError) else str(error)
            return Entry(name, label, None, path, changed, {}, why)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object of limited size. Raises DescriptionError."""
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise fail(file.name, f"is larger than {MAX_JSON_BYTES:,} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise fail(file.name, f"cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise fail(file.name, "expected a JSON object")
    return found
