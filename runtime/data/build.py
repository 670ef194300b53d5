"""Documents to a data set: two token files and `dataset.json`, in one pass.

A document is held out for validation by a hash of its text. So the split depends neither on the
order of the documents nor on the tokenizer, and copies of a document are never on both sides.
"""

from __future__ import annotations

import fcntl
import math
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import blake2b, sha256
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np

from runtime.data.documents import standard_library_documents
from runtime.data.manifest import MANIFEST, TOKENIZER, Manifest, Split
from runtime.data.tokenizer import ByteTokenizer, Tokenizer
from runtime.data.tokens import SPLITS, file_of
from twin.description.problems import DescriptionError, fail
from twin.trace.directory import written_whole

BYTES = ByteTokenizer()
VALIDATION_FRACTION = 0.02

Progress = Callable[[int, int], None]
"""Told (documents, tokens) so far, after each document."""


def build_dataset(
    out: Path,
    documents: Iterable[str],
    tokenizer: Tokenizer = BYTES,
    validation_fraction: float = VALIDATION_FRACTION,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write a data set and return what it says about itself.

    One document at a time is in memory. `validation_fraction` is the expected share of the
    documents that are held out. An existing data set is replaced only if `overwrite` is set.
    """
    if not 0 < validation_fraction < 1:
        raise fail("validation_fraction", "must be above 0 and below 1", validation_fraction)
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"
    with written_whole(out, MANIFEST, "data set of Fourfold", overwrite=overwrite) as folder:
        train, validation = (_Writer(file_of(folder, name), dtype, tokenizer) for name in SPLITS)
        with train, validation:
            for number, text in enumerate(documents, start=1):
                place = held_out(text)
                (validation if place < validation_fraction else train).add(text, place)
                if progress is not None:
                    progress(number, train.tokens + validation.tokens)
        if not validation.tokens or not train.tokens:
            raise _one_sided(train, validation, validation_fraction)
        if tokenizer.json is not None:
            (folder / TOKENIZER).write_text(tokenizer.json, encoding="utf-8")
        manifest = Manifest(
            dtype=dtype,
            vocabulary=tokenizer.vocabulary,
            separator=tokenizer.separator,
            tokenizer="bytes" if tokenizer.json is None else "tokenizer.json",
            train=train.summary(),
            validation=validation.summary(),
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return manifest


def default_dataset(cache: Path) -> Path:
    """Return the directory of the standard library's data set, built on the first call.

    Ranks may call this at the same time: one builds, the others wait. Where the file system
    knows no locks several build, and the first to finish is believed.
    """
    version = f"{sys.implementation.name}-{platform.python_version()}"
    directory = cache / f"standard-library-{version}"
    manifest = directory / MANIFEST
    if not manifest.is_file():
        with _one_at_a_time(cache / f".{directory.name}.lock"):
            if not manifest.is_file():
                try:
                    build_dataset(directory, standard_library_documents())
                except DescriptionError:
                    if not manifest.is_file():
                        raise
    return directory


def held_out(text: str) -> float:
    """Return a number in [0, 1] that depends on the text alone; low ones are for validation."""
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class _Writer:
    """One split on its way to disk."""

    def __init__(self, path: Path, dtype: str, tokenizer: Tokenizer) -> None:
        self.tokens = self.documents = 0
        self.lowest, self.highest = 1.0, 0.0
        """Of the numbers by which its documents came here (`held_out`)."""
        self._largest, self._digest = 0, sha256()
        self._path, self._tokenizer = path, tokenizer
        self._dtype = np.dtype(dtype).newbyteorder("<")

    def __enter__(self) -> Self:
        self._file = self._path.open("wb", buffering=1 << 20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError) if error else nullcontext():  # a second failure says nothing new
            self._file.close()

    def add(self, text: str, place: float) -> None:
        """Write one document and its separator, unless it has no tokens."""
        tokens = self._tokenizer.encode(text)
        if not len(tokens):
            return
        if self._tokenizer.separator is not None:
            tokens = np.append(tokens, np.int64(self._tokenizer.separator))
        least, largest = int(tokens.min()), int(tokens.max())
        if least < 0 or largest >= self._tokenizer.vocabulary:
            raise fail(
                "tokenizer",
                f"gave tokens from {least} to {largest}, outside its vocabulary of {self._tokenizer.vocabulary}",
            )
        raw = tokens.astype(self._dtype).tobytes()
        self._file.write(raw)
        self._digest.update(raw)
        self._largest = max(self._largest, largest)
        self.lowest, self.highest = min(self.lowest, place), max(self.highest, place)
        self.tokens += len(tokens)
        self.documents += 1

    def summary(self) -> Split:
        """Return what `dataset.json` says about the file."""
        return Split(
            tokens=self.tokens, documents=self.documents, largest_token=self._largest, sha256=self._digest.hexdigest()
        )


def _one_sided(train: _Writer, validation: _Writer, fraction: float) -> DescriptionError:
    """Say what would give both splits a document."""
    full = train if train.tokens else validation
    if not full.documents:
        return fail("documents", "hold no text; give files that do")
    if full.lowest >= full.highest:
        return fail(
            "documents",
            "are all the same one, but training and validation need one each; "
            "give more (a file above 1 MiB counts as several)",
        )
    if full is train:
        remedy = f"set it to at least {math.floor(full.lowest * 1e6 + 1) / 1e6:.6f}"
    else:
        remedy = f"set it to at most {math.floor(full.highest * 1e6) / 1e6:.6f}"
    empty = "validation" if full is train else "training"
    return fail(
        "validation_fraction",
        f"leaves none of {full.documents} documents for {empty}; {remedy}, or give more text",
        fraction,
    )


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Hold a lock file; the system releases it if the process dies."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise fail(str(lock.parent), f"cannot be written: {error.strerror}") from None
    with file:
        with suppress(OSError):  # no locks here; the data set is still put in place as a whole
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
