"""Directories of checkpoints: `step-00000100`, and when one counts as complete.

A checkpoint is written into a hidden directory beside its place and renamed when every file of it
has reached the disk, so a directory of the final name is complete by construction. Before one is
deleted it gets a hidden name again. What has a hidden name belongs to a run that died, and is
removed when the next one starts. One run at a time uses a root.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from twin.description.problems import fail

_COMPLETE = re.compile(r"step-(\d{8,15})\Z", re.ASCII)
_HIDDEN = re.compile(r"\.(step-\d{8,15})\.[0-9a-f]{8}(\.replaced)?\Z", re.ASCII)


def newest_first(root: Path) -> list[Path]:
    """Complete checkpoints of a root (empty if there is no such directory), newest first."""
    if not root.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in root.iterdir()
        if (match := _COMPLETE.match(path.name)) and path.is_dir() and not path.is_symlink()
    ]
    return [path for _, path in sorted(found, reverse=True)]


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's directory is named after.

    >>> step_of(Path("run/step-00000100"))
    100
    """
    match = _COMPLETE.match(path.name)
    if match is None:
        raise ValueError(f"{path} is not named after a step")
    return int(match[1])


def start(root: Path) -> None:
    """Make the root if need be, try that it can be written, and remove what dead runs left."""
    root.mkdir(parents=True, exist_ok=True)
    begin(root, 0).rmdir()
    for path in root.iterdir():
        if (match := _HIDDEN.match(path.name)) is None:
            continue
        if match[2] and not (root / match[1]).exists():
            path.rename(root / match[1])  # its successor did not get that far
        else:
            shutil.rmtree(path, ignore_errors=True)


def begin(root: Path, step: int) -> Path:
    """Make the hidden directory that a step's checkpoint is written into."""
    path = root / f".step-{step:08d}.{secrets.token_hex(4)}"
    path.mkdir()
    return path


def commit(temporary: Path) -> Path:
    """Give a written checkpoint its final name, in place of one that has it already."""
    match = _HIDDEN.match(temporary.name)
    assert match is not None, temporary
    final = temporary.with_name(match[1])
    replaced = temporary.with_name(temporary.name + ".replaced")
    sync_directory(temporary)
    if final.exists():
        final.rename(replaced)
    temporary.rename(final)
    sync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def retain(newest: Path, keep: int, useless: Collection[Path], best: int | None = None) -> None:
    """Delete what is older than the last `keep` checkpoints up to the one just committed, but for that of step `best`.

    Those that could not be loaded do not count as kept.
    """
    complete = [p for p in newest_first(newest.parent) if step_of(p) <= step_of(newest)]
    kept = [path for path in complete if path not in useless][:keep]
    for path in complete[complete.index(kept[-1]) + 1 :]:
        if step_of(path) != best:
            _delete(path)


def discard_after(root: Path, step: int) -> None:
    """Delete the complete checkpoints of later steps."""
    for path in newest_first(root):
        if step_of(path) > step:
            _delete(path)


def _delete(path: Path) -> None:
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Give a hidden directory to write into, which gets its name when all of it is written; else it goes.

    What is written must have reached the disk. Raises DescriptionError if the name is taken, or there is no room.
    """
    if out.exists() or out.is_symlink():
        raise fail(str(out), "exists already; choose another directory")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        sync_directory(temporary)
        temporary.rename(out)
        sync_directory(out.absolute().parent)
    except OSError as error:
        raise fail(str(out), f"cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # it is gone if all went well


def sync_directory(path: Path) -> None:
    """Bring a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
