"""`dataset.json`: what a data set says about itself, written last and read strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from twin.description.problems import DescriptionError, Problem, fail, from_pydantic
from twin.description.spec import Spec

SCHEMA_VERSION = 1
MANIFEST = "dataset.json"
TOKENIZER = "tokenizer.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_VOCABULARY = 1 << 32
TOKEN_BYTES = {"uint16": 2, "uint32": 4}
"""Bytes of one token by dtype; both are little-endian on disk."""

OF_TOKENIZER = ("tokenizer", "vocabulary", "separator")
"""Keys that data sets have in common whose tokens mean the same."""

REBUILD = "build it again with `fourfold data {} --force`"

Count = Annotated[int, Field(gt=0, le=1 << 48, strict=True)]
Token = Annotated[int, Field(ge=0, lt=MAX_VOCABULARY, strict=True)]


def without(written: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Leave out what only some data sets have, so that others are what they were."""
    return {key: value for key, value in written.items() if value is not None or key not in keys}


class Split(Spec):
    """One token file: training or validation."""

    tokens: Count
    """Their number."""
    documents: Count
    """Number that the tokens came from."""
    largest_token: Token
    """So that a model with too few embeddings is refused before it trains."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of the file; `sha256sum` computes the same."""
    targets: Count | None = None
    """Of documents at the begin of sequences: tokens that count; of conversations the answers."""
    targets_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Of the file that says which tokens count."""
    left_out: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Conversations that are longer than a sequence."""
    documents_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Of packed conversations: of the file that says where each begins."""
    padding: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Of packed conversations, and of text at the begin of sequences: tokens that fill sequences up."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without(handler(self), ("targets", "targets_sha256", "left_out", "documents_sha256", "padding"))


class Manifest(Spec):
    """The whole of `dataset.json`."""

    schema_version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    vocabulary: Annotated[int, Field(gt=0, le=MAX_VOCABULARY, strict=True)]
    """Of the tokenizer: its largest id, used or not, plus one."""
    tokenizer: Literal["bytes", "tokenizer.json"]
    """A byte is a token, or a file of the `tokenizers` library copied beside the data."""
    separator: Token | None
    """The token after each document, if the tokenizer has one for that."""
    begin: Token | None = None
    """The token before each document's text, if its tokenizer puts one there; conversations have what their template
    writes."""
    train: Split
    validation: Split
    sequence: Count | None = None
    """Where every document begins a sequence, or lies in one with others (packed): its tokens."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without(handler(self), ("begin", "sequence"))

    @property
    def token_bytes(self) -> int:
        """Bytes of one token on disk."""
        return TOKEN_BYTES[self.dtype]


def rebuild(directory: Path) -> str:
    """Return the remedy for a data set that cannot be trusted any more."""
    return REBUILD.format(directory)


def read_manifest(directory: Path) -> Manifest:
    """Read and check what a data set says about itself; its token files are not looked at."""
    path = directory / MANIFEST
    build = f"build one with `fourfold data {directory}`"
    if not directory.is_dir():
        raise fail(str(directory), f"no such data set; {build}")
    if not path.is_file():
        raise fail(str(directory), f"is not a data set: {MANIFEST} is missing; {build}")
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise fail(str(path), f"too large for a manifest; {rebuild(directory)}")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, DescriptionError):
            raise
        raise fail(str(path), f"cannot be read: {error}; {rebuild(directory)}") from None
    return _validate(raw, path)


def _validate(raw: Any, path: Path) -> Manifest:
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise fail(
            str(path), f"schema_version is {version!r}; this version reads {SCHEMA_VERSION}; {rebuild(path.parent)}"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        remedy = rebuild(path.parent)
        problems = [Problem(p.path, f"{p.message}; {remedy}", p.value) for p in from_pydantic(error, Manifest)]
        raise DescriptionError(problems, str(path)) from None
