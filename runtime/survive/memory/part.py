"""What one rank's part of a copy says about itself; all parts of a step make a checkpoint's manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from runtime.checkpoint.host import State
from runtime.checkpoint.manifest import (
    CHECKSUM,
    Chunk,
    Count,
    DtypeName,
    Manifest,
    Place,
    Record,
    SavedTensor,
    Sizes,
    sign,
)
from runtime.checkpoint.pieces import Piece
from runtime.checkpoint.storage import read_chunk
from runtime.checkpoint.tensor_file import DTYPE_NAMES, TensorFile, UnusableFileError, open_regular, write_tensors
from runtime.survive.memory.place import data_file, part_file

MAX_PART_BYTES = 1 << 28
"""Of the text that describes a part, not of its tensors: more is a damaged file, and is not read."""


class PartTensor(Record):
    """This rank's chunks of a full tensor."""

    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=2)]
    dtype: DtypeName
    chunks: tuple[Chunk, ...]


class Part(Record):
    """The whole of `rank-….json`."""

    run: str
    """Of `run.json`: tells the run from one that had the directory before."""
    session: str
    step: Place
    samples: Place
    grid: Sizes
    rank: Place
    model: dict[str, Any]
    extra: dict[str, Any]
    tensors: dict[str, PartTensor] = Field(default_factory=dict)


def write_part(folder: Path, part: Part, state: State) -> None:
    """Write a rank's numbers and, when they are there, what they are; raises OSError."""
    pieces = [piece for pieces in state.values() for piece in pieces]
    path = data_file(folder, part.rank)
    header = {_key(p): (DTYPE_NAMES[p.values.dtype], tuple(p.values.shape)) for p in pieces}
    sums = write_tensors(path, header, (p.values for p in pieces), {}) if pieces else []
    tensors: dict[str, dict[str, Any]] = {}
    for piece, crc32 in zip(pieces, sums, strict=True):
        tensor = tensors.setdefault(
            piece.tensor, {"shape": piece.shape, "dtype": DTYPE_NAMES[piece.values.dtype], "chunks": []}
        )
        tensor["chunks"].append(
            Chunk(
                offsets=tuple(piece.offsets),
                sizes=tuple(piece.values.shape),
                file=path.name,
                key=_key(piece),
                crc32=crc32,
            )
        )
    whole = Part.model_validate(dict(part) | {"tensors": tensors})
    put(part_file(folder, part.rank), sign(whole.model_dump_json().encode()))


def put(path: Path, text: bytes) -> None:
    """Write a file that is there only as a whole."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(text)
    temporary.replace(path)


def _key(piece: Piece) -> str:
    return f"{piece.tensor}[{','.join(map(str, piece.offsets))}]"


def read_part(path: Path) -> tuple[Part, bytes]:
    """Read what a part says about itself, and the text; raises UnusableFileError."""
    with open_regular(path) as file:
        text = file.read(MAX_PART_BYTES + 1)
    return parse_part(text, path), text


def parse_part(text: bytes, path: Path | str) -> Part:
    """Check the text of a part; raises UnusableFileError."""
    body, _, _ = text.rpartition(CHECKSUM)
    if len(text) > MAX_PART_BYTES or sign(body + b"}") != text:
        raise UnusableFileError(path, "is truncated or corrupted: its checksum does not fit")
    try:
        return Part.model_validate(json.loads(body.decode() + "}"))
    except (ValueError, RecursionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UnusableFileError(path, f"is no part of a copy: {reason}") from None


def verify(folder: Path, part: Part) -> None:
    """Check every number of a part against its checksum; raises UnusableFileError."""
    if not part.tensors:
        return
    with TensorFile(data_file(folder, part.rank)) as file:
        for tensor in part.tensors.values():
            for chunk in tensor.chunks:
                read_chunk(file, chunk, tensor.dtype)


def manifest_of(parts: Sequence[Part]) -> Manifest:
    """Put the parts of all ranks together; raises UnusableFileError if they are not a whole."""
    first = parts[0]
    alike = {(p.run, p.session, p.step, p.samples, tuple(p.grid.items())) for p in parts}
    if len(alike) != 1 or sorted(p.rank for p in parts) != list(range(prod(first.grid.values()))):
        raise UnusableFileError(f"copy of step {first.step}", "has parts that do not belong together")
    tensors = {}
    for name, kind in _by_name(parts).items():
        chunks = tuple(c for part in parts if name in part.tensors for c in part.tensors[name].chunks)
        tensors[name] = {"shape": kind.shape, "dtype": kind.dtype, "chunks": chunks}
    try:
        return Manifest(
            step=first.step,
            samples=first.samples,
            grid=first.grid,
            model=first.model,
            extra=first.extra,
            tensors={name: SavedTensor.model_validate(tensor) for name, tensor in tensors.items()},
        )
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UnusableFileError(f"copy of step {first.step}", f"is not whole: {reason}") from None


def _by_name(parts: Iterable[Part]) -> dict[str, PartTensor]:
    return {name: tensor for part in parts for name, tensor in part.tensors.items()}
