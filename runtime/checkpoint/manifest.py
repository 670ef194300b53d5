"""`checkpoint.json`: what a checkpoint says about itself, written last and read strictly.

Its last key is a checksum of all before it, so that a flipped bit in a step or a name does not pass.
A checkpoint may come from a stranger all the same. What is checked here, with every chunk's
checksum when it is read, is all that has to hold before a number of it is used.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runtime.checkpoint.cover import cover_problem
from runtime.checkpoint.tensor_file import UnusableFileError, open_regular
from twin.description.problems import from_pydantic

SCHEMA_VERSION = 1
MANIFEST = "checkpoint.json"
MAX_MANIFEST_BYTES = 1 << 30
SHOWN_PROBLEMS = 3
CHECKSUM = b',"crc32":'
"""Comes before the last value of the file."""

Count = Annotated[int, Field(gt=0, lt=1 << 48, strict=True)]
Place = Annotated[int, Field(ge=0, lt=1 << 48, strict=True)]
Sizes = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")], Count], Field(min_length=1, max_length=16)
]
"""Sizes of a grid's axes, outermost first."""
DtypeName = Literal["F64", "F32", "F16", "BF16"]


class Record(BaseModel):
    """A part of the manifest: frozen, and nothing unknown in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Chunk(Record):
    """A rectangle of a full tensor, and where it lies."""

    offsets: tuple[Place, ...]
    sizes: tuple[Count, ...]
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors$")]
    """In the checkpoint's directory; the pattern leaves no way out of it."""
    key: Annotated[str, Field(min_length=1, max_length=1000)]
    """Name of the tensor in the file."""
    crc32: Annotated[int, Field(ge=0, lt=1 << 32, strict=True)]
    """Of its bytes."""


class SavedTensor(Record):
    """A full tensor in chunks."""

    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=2)]
    dtype: DtypeName
    chunks: tuple[Chunk, ...]

    @model_validator(mode="after")
    def _covered_once(self) -> Self:
        if problem := cover_problem(self.shape, [(c.offsets, c.sizes) for c in self.chunks]):
            raise ValueError(f"chunks {problem}")
        return self


class Manifest(Record):
    """The whole of `checkpoint.json`."""

    schema_version: Literal[1] = 1
    step: Place
    """Optimizer steps done."""
    samples: Place
    """Sequences consumed."""
    grid: Sizes
    """It was saved on."""
    model: dict[str, Any]
    """Shape of the model, as in a job file."""
    extra: dict[str, Any]
    """What the caller added."""
    tensors: dict[str, SavedTensor]
    """`model/NAME`, `exp_avg/NAME` and `exp_avg_sq/NAME` for every parameter."""

    @model_validator(mode="after")
    def _each_place_once(self) -> Self:
        seen: set[tuple[str, str]] = set()
        for name, tensor in self.tensors.items():
            for chunk in tensor.chunks:
                if (chunk.file, chunk.key) in seen:
                    raise ValueError(f"{name} shares {chunk.key} of {chunk.file}")
                seen.add((chunk.file, chunk.key))
        return self

    @property
    def weights(self) -> dict[str, SavedTensor]:
        """Weights by the name of their parameter."""
        return {n.removeprefix("model/"): t for n, t in self.tensors.items() if n.startswith("model/")}


def to_text(manifest: Manifest) -> bytes:
    """Write `checkpoint.json`."""
    return sign(manifest.model_dump_json().encode())


def sign(text: bytes) -> bytes:
    """Add its checksum to the text of a JSON mapping."""
    body = text.rstrip().removesuffix(b"}")
    return body + CHECKSUM + b"%d}\n" % zlib.crc32(body)


def read_text(directory: Path) -> bytes:
    """Read `checkpoint.json` without looking into it."""
    path = directory / MANIFEST
    with open_regular(path) as file:
        try:
            text = file.read(MAX_MANIFEST_BYTES + 1)
        except OSError as error:
            raise UnusableFileError(path, f"cannot be read: {error.strerror}") from None
    if len(text) > MAX_MANIFEST_BYTES:
        raise UnusableFileError(path, "is too large for a manifest")
    return text


def parse(text: bytes, directory: Path) -> Manifest:
    """Check the text of `checkpoint.json`; raises UnusableFileError with what is wrong."""
    path = directory / MANIFEST
    body, _, _ = text.rpartition(CHECKSUM)
    if sign(body + b"}") != text:
        raise UnusableFileError(path, "is truncated or corrupted: its checksum does not fit")
    try:
        raw = json.loads(body.decode() + "}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UnusableFileError(path, f"is not JSON: {error}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise UnusableFileError(path, f"schema_version is {version!r}; this version reads {SCHEMA_VERSION}")
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        problems = from_pydantic(error, Manifest)
        shown = "; ".join(map(str, problems[:SHOWN_PROBLEMS]))
        if len(problems) > SHOWN_PROBLEMS:
            shown += f"; and {len(problems) - SHOWN_PROBLEMS} more"
        raise UnusableFileError(path, shown) from None


def read_manifest(directory: Path) -> Manifest:
    """Read and check what a checkpoint says about itself; its tensors are not looked at."""
    return parse(read_text(directory), directory)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")
