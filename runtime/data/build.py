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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from hashlib import blake2b, sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from runtime.data.chat import Marked
from runtime.data.documents import standard_library_documents
from runtime.data.manifest import MANIFEST, TOKENIZER, Manifest, Split
from runtime.data.packing import Packed, Packer
from runtime.data.tokenizer import ByteTokenizer, Tokenizer, begun
from runtime.data.tokens import SPLITS, documents_of, file_of, targets_of
from twin.description.problems import DescriptionError, fail
from twin.trace.directory import written_whole

BYTES = ByteTokenizer()
VALIDATION_FRACTION = 0.02

Progress = Callable[[int, int], None]
"""Told (documents, tokens) so far, after each document."""


def build_dataset(
    out: Path,
    documents: Iterable[str | Marked],
    tokenizer: Tokenizer = BYTES,
    validation_fraction: float = VALIDATION_FRACTION,
    *,
    sequence: int | None = None,
    pack: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write a data set and return what it says about itself.

    One document at a time is in memory. `validation_fraction` is the expected share of the
    documents that are held out. An existing data set is replaced only if `overwrite` is set. With
    `sequence` every document begins a sequence of so many tokens: text goes on in those that follow, conversations
    (`Marked`) have one each; or several conversations share one, with `pack`.
    """
    if not 0 < validation_fraction < 1:
        raise fail("validation_fraction", "must be above 0 and below 1", validation_fraction)
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"
    tokens = [file_of(Path(), name) for name in SPLITS]
    files = [file.name for each in tokens for file in (each, targets_of(each), documents_of(each))]
    own = (MANIFEST, TOKENIZER, *files)
    with written_whole(out, MANIFEST, "data set of Fourfold", overwrite=overwrite, own=own) as folder:
        train, validation = (_Writer(file_of(folder, name), dtype, tokenizer, sequence, pack=pack) for name in SPLITS)
        with train, validation:
            for number, document in enumerate(documents, start=1):
                place = held_out(document if isinstance(document, str) else document.text)
                (validation if place < validation_fraction else train).add(document, place)
                if progress is not None:
                    progress(number, train.tokens + validation.tokens)
        if not validation.tokens or not train.tokens:
            raise _one_sided(train, validation, validation_fraction)
        if sequence is not None and not (train.targets and validation.targets):
            raise fail(
                "--chat", "no token of an answer counts: where conversations are packed the first of each cannot"
            )
        if tokenizer.json is not None:
            (folder / TOKENIZER).write_text(tokenizer.json, encoding="utf-8")
        manifest = Manifest(
            dtype=dtype,
            vocabulary=tokenizer.vocabulary,
            separator=tokenizer.separator,
            begin=tokenizer.begin,
            tokenizer="bytes" if tokenizer.json is None else "tokenizer.json",
            train=train.summary(),
            validation=validation.summary(),
            sequence=sequence,
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
    """One split on its way to disk; with a `sequence` each document at the begin of one, or conversations packed."""

    def __init__(
        self, path: Path, dtype: str, tokenizer: Tokenizer, sequence: int | None = None, *, pack: bool = False
    ) -> None:
        self.tokens = self.documents = self.targets = self.left_out = self.padding = 0
        self.lowest, self.highest = 1.0, 0.0
        """Of the numbers by which its documents came here (`held_out`)."""
        self._largest = 0
        self._text = False
        """It has text at the begin of sequences."""
        self._path, self._tokenizer, self._sequence = path, tokenizer, sequence
        self._packer = Packer(sequence) if pack and sequence is not None else None
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._file = _File(self._path, self._open)
        if self._sequence is not None:
            self._targets = _File(targets_of(self._path), self._open)
        if self._packer is not None:
            self._begins = _File(documents_of(self._path), self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._packer is not None:
            for packed in self._packer.rest():
                self._write_packed(packed)
        if self._sequence is not None and self.tokens and error is None:
            after = np.zeros(1, bool)  # what follows the last sequence
            self._write(np.zeros(1, np.int64), after, ~after)
        with suppress(OSError) if error else nullcontext():  # a second failure says nothing new
            self._open.close()

    def add(self, document: str | Marked, place: float) -> None:
        """Write one document and its separator, unless it has no tokens; or a conversation, unless it is too long.

        With a `sequence` a text needs two tokens, of which the second is predicted.
        """
        counts = None
        if isinstance(document, str):
            tokens = self._tokenizer.encode(document)
            if len(tokens):
                tokens = begun(self._tokenizer, tokens)
            if len(tokens) and self._tokenizer.separator is not None:
                tokens = np.append(tokens, np.int64(self._tokenizer.separator))
        else:
            tokens, counts = self._tokenizer.encode_pieces(document.pieces)
        if not len(tokens):
            return
        least, largest = int(tokens.min()), int(tokens.max())
        if least < 0 or largest >= self._tokenizer.vocabulary:
            raise fail(
                "tokenizer",
                f"gave tokens from {least} to {largest}, outside its vocabulary of {self._tokenizer.vocabulary}",
            )
        if self._sequence is None:
            self._write(tokens)
        elif not (
            self._add_text(tokens, self._sequence)
            if counts is None
            else self._add_conversation(tokens, counts, self._sequence)
        ):
            return
        self._largest = max(self._largest, largest)
        self.lowest, self.highest = min(self.lowest, place), max(self.highest, place)
        self.documents += 1

    def _add_text(self, tokens: NDArray[Any], sequence: int) -> bool:
        """Write a text from the begin of a sequence on, in as many as it takes; what is left of the last is padding."""
        if len(tokens) % sequence == 1:
            tokens = tokens[:-1]  # it would have a sequence to itself, in which nothing is predicted
        if not len(tokens):
            return False
        self._text = True
        room = -len(tokens) % sequence
        counts = np.pad(np.ones(len(tokens), np.bool_), (0, room))
        counts[0] = False  # nothing of its text comes before it
        self.padding += room
        self._write(np.pad(tokens, (0, room)), counts)
        return True

    def _add_conversation(self, tokens: NDArray[Any], counts: NDArray[np.bool_], sequence: int) -> bool:
        if len(tokens) > sequence:
            self.left_out += 1
            return False
        if self._packer is not None:
            for packed in self._packer.add(tokens, counts):
                self._write_packed(packed)
            return True
        room = (0, sequence - len(tokens))
        tokens, counts = np.pad(tokens, room), np.pad(counts, room)
        counts[0] = False  # nothing comes before it
        self._write(tokens, counts)
        return True

    def _write_packed(self, packed: Packed) -> None:
        self.padding += packed.padding
        self._write(packed.tokens, packed.counts, packed.begins)

    def _write(
        self, tokens: NDArray[Any], counts: NDArray[np.bool_] | None = None, begins: NDArray[np.bool_] | None = None
    ) -> None:
        self._file.write(tokens.astype(self._dtype))
        self.tokens += len(tokens)
        if counts is not None:
            self._targets.write(counts.astype(np.uint8))
            self.targets += int(counts.sum())
        if begins is not None and self._packer is not None:
            self._begins.write(begins.astype(np.uint8))

    def summary(self) -> Split:
        """Return what `dataset.json` says about the file."""
        laid: dict[str, Any] = {}
        if self._sequence is not None:
            digest = self._targets.digest.hexdigest()
            laid = {"targets": self.targets, "targets_sha256": digest}
            laid |= {"padding": self.padding} if self._text else {"left_out": self.left_out}
        if self._packer is not None:
            laid |= {"documents_sha256": self._begins.digest.hexdigest(), "padding": self.padding}
        return Split(
            tokens=self.tokens,
            documents=self.documents,
            largest_token=self._largest,
            sha256=self._file.digest.hexdigest(),
            **laid,
        )


class _File:
    """A file on its way to disk, and its digest."""

    def __init__(self, path: Path, held: ExitStack) -> None:
        self._file = held.enter_context(path.open("wb", buffering=1 << 20))
        self.digest = sha256()

    def write(self, numbers: NDArray[Any]) -> None:
        """Append numbers as they lie in memory."""
        raw = numbers.tobytes()
        self._file.write(raw)
        self.digest.update(raw)


def _one_sided(train: _Writer, validation: _Writer, fraction: float) -> DescriptionError:
    """Say what would give both splits a document."""
    full = train if train.tokens else validation
    if not full.documents and (long := train.left_out + validation.left_out):
        return fail("--sequence", f"all {long} conversations are longer; give more tokens", None)
    if not full.documents:
        return fail("documents", "hold no text; give files that do")
    long = train.left_out + validation.left_out
    if full.lowest >= full.highest and long:
        return fail(
            "--sequence",
            f"is less than {long} of {long + full.documents} conversations take; those that fit are all the same one, "
            "but training and validation need one each; give more tokens",
        )
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
