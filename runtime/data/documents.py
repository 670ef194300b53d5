"""Where text comes from: files, JSON lines, or the Python standard library.

All readers are lazy and hold one document at a time. Files are read in the order given, those of
a directory in the order of their names, so that the same text makes the same data set.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from twin.description.problems import did_you_mean, fail

WHOLE_FILE_BYTES = 1 << 20
"""A longer text file is cut, at ends of lines, into documents of `PIECE` characters."""
PIECE = 1 << 16

NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
MADE_HERE = ("_sysconfigdata", "sitecustomize", "usercustomize")
"""Modules that differ between machines with the same Python."""


def text_documents(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the text of files, and of all files in directories.

    What is not UTF-8 reads as U+FFFD. In directories, hidden entries and binary files (a zero
    byte near the beginning) are passed over. A file up to 1 MiB is one document; a longer one is
    several, so that a corpus in a single file can be split and never fills the memory.
    """
    for given in paths:
        for path in _files(given, "*"):
            if path == given or not _is_binary(path):
                yield from _pieces(path)


def jsonl_documents(paths: Iterable[Path], key: str) -> Iterator[str]:
    """Yield the text under a key of each line of files, or of the `.jsonl` files in directories.

    Empty lines are passed over; any other line that holds no text there is an error.
    """
    for given in paths:
        for path in _files(given, "*.jsonl"):
            yield from (line[key] for _, line in json_lines(path, key, " (--key)"))


def json_lines(path: Path, key: str, option: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object of a file of JSON lines, and its place for messages; each has a text under the key.

    Empty lines are passed over; any other line is an error, which says by which `option` the key is chosen.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}:{number}", _object(line, key, f"{path}:{number}", option)


def any_json_lines(paths: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object of files of JSON lines, or of the `.jsonl` files in directories, and its place for messages."""
    for given in paths:
        for path in _files(given, "*.jsonl"):
            with _opened(path) as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield f"{path}:{number}", _parsed(line, f"{path}:{number}", "an object")


def standard_library_documents() -> Iterator[str]:
    """Yield the modules of the Python standard library on this machine, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [
        path
        for path in _sorted(root, "*.py")
        if not NOT_LIBRARY & set(path.relative_to(root).parts) and not path.name.startswith(MADE_HERE)
    ]
    if not found:
        raise fail(str(root), "holds no Python files; give text with --text or --jsonl instead")
    for path in found:
        with _opened(path) as file:
            yield file.read()


def _files(given: Path, pattern: str) -> Iterator[Path]:
    if given.is_dir():
        found = [
            path
            for path in _sorted(given, pattern)
            if not any(part.startswith(".") for part in path.relative_to(given).parts)
        ]
        if not found:
            raise fail(str(given), f"holds no files {pattern}; name a directory that has some")
        yield from found
    elif given.is_file():
        yield given
    else:
        raise fail(str(given), "no such file or directory")


def _sorted(root: Path, pattern: str) -> list[Path]:
    """Return files below a directory in an order that no file system decides."""
    return sorted((p for p in root.rglob(pattern) if p.is_file()), key=Path.as_posix)


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a text; line ends stay as they are, a byte order mark goes."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
            yield file
    except OSError as error:
        raise fail(str(path), f"cannot be read: {error.strerror}") from None


def _is_binary(path: Path) -> bool:
    with _opened(path) as file:
        return "\0" in file.read(1 << 13)


def _pieces(path: Path) -> Iterator[str]:
    with _opened(path) as file:
        if path.stat().st_size <= WHOLE_FILE_BYTES:
            yield file.read()
            return
        while piece := file.read(PIECE) + file.readline(PIECE):
            yield piece


def _parsed(line: str, where: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise fail(where, f"is not JSON: {error}; write one object per line") from None
    if not isinstance(value, dict):
        raise fail(where, f"expected {what}", value)
    return value


def _object(line: str, key: str, where: str, option: str) -> dict[str, Any]:
    value = _parsed(line, where, f"an object with the key {key!r}")
    if key not in value:
        keys = did_you_mean(key, value) if value else "the object is empty"
        raise fail(where, f"has no key {key!r}{option}; {keys}")
    if not isinstance(value[key], str):
        raise fail(f"{where}: {key}", "expected text", value[key])
    return value
