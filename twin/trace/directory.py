"""A directory written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from twin.description.problems import fail


@contextmanager
def written_whole(
    target: Path, mark: str, kind: str, *, overwrite: bool, own: Sequence[str] = ("*",)
) -> Iterator[Path]:
    """Give a temporary directory beside the target, which becomes the target at the end.

    If anything fails it is removed. An existing directory is replaced only if `overwrite` is set
    and it is empty or holds the file `mark`, by which its `kind` is known, and nothing else than
    files by names that match one of `own`.
    """
    target = target.resolve()
    refuse_kept(target, mark, kind, overwrite=overwrite, own=own)
    temporary = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if target.exists():  # it may have taken hours
            _refuse_others(target, kind, own)
        _replace(target, temporary)
    except OSError as error:
        raise fail(str(target), f"cannot be written: {error.strerror}; choose another place") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_kept(target: Path, mark: str, kind: str, *, overwrite: bool, own: Sequence[str] = ("*",)) -> None:
    """Refuse a target that `written_whole` would not replace, or could not be made; raises DescriptionError."""
    try:
        if not target.exists():
            place = next(place for place in target.absolute().parents if place.exists())
            if not place.is_dir():
                raise fail(str(target), f"cannot be written: {place} is a file; choose another place")
            if not os.access(place, os.W_OK | os.X_OK):
                raise fail(str(target), f"cannot be written: nothing may be written in {place}; choose another place")
            return
        known = target.is_dir() and (target / mark).is_file()
        empty = target.is_dir() and not any(target.iterdir())
        if not overwrite and (known or empty):
            raise fail(str(target), "exists already; choose another directory or pass --force")
        if not overwrite:
            raise fail(str(target), f"exists already and is not a {kind}; choose another directory")
        if not known and not empty:
            raise fail(str(target), f"is not a {kind}, for it has no {mark}; it will not be replaced")
        _refuse_others(target, kind, own)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise fail(
                str(target), f"cannot be replaced: nothing may be written in {target.parent}; choose another place"
            )
    except OSError as error:
        raise fail(str(target), f"cannot be written: {error.strerror}; choose another place") from None


def _refuse_others(target: Path, kind: str, own: Sequence[str]) -> None:
    """Refuse to replace a directory that holds what nobody here wrote; but for what file systems leave behind."""
    known = (*own, ".nfs*", ".DS_Store")
    names = sorted(entry.name for entry in target.iterdir())
    if others := [name for name in names if not any(fnmatchcase(name, pattern) for pattern in known)]:
        more = " and more" if others[1:] else ""
        raise fail(str(target), f"holds {others[0]}{more} beside a {kind}, which would be lost; move that elsewhere")


def _replace(directory: Path, new: Path) -> None:
    """Put a new directory in place; the old one goes only when the new one is there."""
    if not directory.exists():
        new.rename(directory)
        return
    old = new.with_name(new.name + ".old")
    directory.rename(old)
    try:
        new.rename(directory)
    except OSError:
        old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)


def check_place(path: Path, manifest: str) -> None:
    """Refuse a place that holds something else than results, whose `manifest` says so."""
    if not path.exists():
        return
    if not path.is_dir():
        raise fail(str(path), "is not a directory; choose another --out")
    others = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
    if others and not (path / manifest).is_file():
        raise fail(str(path), f"holds other files and no {manifest}; choose another --out")
