"""A data set on disk, opened for training: two files of raw little-endian tokens.

Opening maps the files into memory and reads none of them, so that it takes no longer for a
terabyte: sizes are held against `dataset.json`, and `Batches` checks every token it hands out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.data.manifest import Manifest, Split, read_manifest, rebuild
from twin.description.problems import DescriptionError, Problem

SPLITS = ("train", "validation")

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class TokenFile:
    """One split of a data set: `tokens` is the whole file, mapped and read-only."""

    path: Path
    tokens: Tokens
    sha256: str
    targets: NDArray[np.uint8] | None = None
    """Of documents laid out in sequences: 1 where a token counts as a target; mapped too."""
    documents: NDArray[np.uint8] | None = None
    """Of packed conversations: 1 where one begins, or the padding; mapped too."""
    separator: int | None = None
    """Of text one after the other: the token between documents."""


@dataclass(frozen=True)
class DataSet:
    """A data set that suits a model."""

    directory: Path
    train: TokenFile
    validation: TokenFile
    manifest: Manifest


def open_dataset(directory: Path, *, vocabulary: int, sequence: int) -> DataSet:
    """Open a data set for a model with so many embeddings and so many tokens in a sequence.

    Everything that is wrong with either file is told at once, with the file and the remedy.
    """
    manifest = read_manifest(directory)
    problems: list[Problem] = []
    for name in SPLITS:
        path, split = file_of(directory, name), getattr(manifest, name)
        wrong = _damage(path, split, manifest) or _misfit(split, manifest, vocabulary, sequence)
        problems += [Problem(str(path), wrong)] if wrong else []
    if problems:
        raise DescriptionError(problems)
    train, validation = (_map(file_of(directory, name), getattr(manifest, name), manifest) for name in SPLITS)
    return DataSet(directory, train, validation, manifest)


def file_of(directory: Path, split: str) -> Path:
    """Return where a split's tokens are."""
    return directory / f"{split}.bin"


def targets_of(tokens: Path) -> Path:
    """Return where is said which tokens of a file count."""
    return tokens.with_suffix(".targets.bin")


def documents_of(tokens: Path) -> Path:
    """Return where is said at which tokens of a file documents begin."""
    return tokens.with_suffix(".documents.bin")


def _damage(path: Path, split: Split, manifest: Manifest) -> str | None:
    """Say what shows, without reading it, that the file is not the one that was built."""
    remedy = rebuild(path.parent)
    if not path.is_file():
        return f"no such file; {remedy}"
    size, promised = path.stat().st_size, split.tokens * manifest.token_bytes
    if size != promised:
        return f"has {size:,} bytes, but {split.tokens:,} tokens of {manifest.dtype} are {promised:,}; {remedy}"
    for beside, there in ((targets_of(path), split.targets), (documents_of(path), split.documents_sha256)):
        if there is not None and _size(beside) != split.tokens:
            return f"needs {beside.name} beside it, with a byte for each token; {remedy}"
    if split.largest_token >= manifest.vocabulary:
        return (
            f"is said to hold token {split.largest_token}, beyond the tokenizer's vocabulary of "
            f"{manifest.vocabulary}; {remedy}"
        )
    return None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _misfit(split: Split, manifest: Manifest, vocabulary: int, sequence: int) -> str | None:
    """Say why a sound file does not suit the model."""
    if manifest.sequence not in (None, sequence):
        return (
            f"holds documents laid out for sequences of {manifest.sequence}; set model.sequence to that, or build "
            f"it again with --sequence {sequence}"
        )
    if split.largest_token >= vocabulary:
        return (
            f"holds token {split.largest_token}, but the model's vocabulary is {vocabulary}; "
            f"set model.vocabulary to at least {split.largest_token + 1}"
        )
    if split.tokens <= sequence:
        return (
            f"holds {split.tokens:,} tokens, too few for one sequence of {sequence:,} and the token after it; "
            f"add text or set model.sequence to at most {split.tokens - 1}"
        )
    return None


def _map(path: Path, split: Split, manifest: Manifest) -> TokenFile:
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    mapped = np.memmap(path, dtype=dtype, mode="r", shape=(split.tokens,))
    return TokenFile(
        path,
        np.asarray(mapped),
        split.sha256,
        None if split.targets is None else _bytes(targets_of(path), split),
        None if split.documents_sha256 is None else _bytes(documents_of(path), split),
        manifest.separator if manifest.sequence is None else None,
    )


def _bytes(path: Path, split: Split) -> NDArray[np.uint8]:
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r", shape=(split.tokens,)))
