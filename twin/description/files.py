"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twin.description.problems import fail


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary place in the same directory, which takes the path's place at the end.

    Nothing is left of it if the block fails. Raises DescriptionError if it cannot be written.
    """
    temporary = path.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise fail(str(path), f"cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):  # it is gone if all went well, and was never there where its directory is none
            temporary.unlink()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text is UTF-8. Raises DescriptionError if it cannot be."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
