"""Text to tokens and back: bytes by default, or any JSON file of the `tokenizers` library."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.data.manifest import MAX_VOCABULARY, TOKENIZER, read_manifest, rebuild
from twin.description.problems import fail

END_OF_TEXT = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>")
"""What tokenizers call the token between documents."""
MAX_TOKENIZER_BYTES = 256 << 20

TokenIds = Sequence[int] | NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """A part of a text."""

    text: str
    counts: bool
    """Whether its tokens are targets."""
    special: bool = True
    """Whether what looks like a special token in it is one."""


class Tokenizer(Protocol):
    """What a data set is built with and a sample of generated text is read with."""

    @property
    def vocabulary(self) -> int:
        """Largest token plus one."""

    @property
    def separator(self) -> int | None:
        """The token that ends a document."""

    @property
    def begin(self) -> int | None:
        """The token that begins a text; None if there is none."""

    @property
    def json(self) -> str | None:
        """The tokenizer itself, to be kept beside the data; None for bytes."""

    def encode(self, text: str) -> NDArray[Any]:
        """Return the tokens of a text, without a separator: 1-d."""

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the tokens of a text in pieces, and which of them begin in a piece that counts."""

    def decode(self, tokens: TokenIds) -> str:
        """Return the text of any tokens; what has no text is replaced or left out."""


@dataclass(frozen=True)
class ByteTokenizer:
    """Each byte of the UTF-8 text is a token; byte 0, which text hardly holds, ends a document."""

    vocabulary: int = 256
    separator: int | None = 0
    begin: int | None = None
    json: str | None = None

    def encode(self, text: str) -> NDArray[np.uint8]:
        """Return the bytes of a text.

        >>> ByteTokenizer().encode("héllo").tolist()
        [104, 195, 169, 108, 108, 111]
        """
        return np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8)

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the bytes of all pieces, and which of them count."""
        found = [self.encode(piece.text) for piece in pieces]
        return np.concatenate(found), np.repeat([piece.counts for piece in pieces], [len(part) for part in found])

    def decode(self, tokens: TokenIds) -> str:
        """Return the text; what is no byte or no UTF-8 reads as U+FFFD.

        >>> ByteTokenizer().decode([79, 75, 300])
        'OK\ufffd'
        """
        numbers = np.asarray(tokens, dtype=np.int64)
        invalid = 0xFF  # a byte that UTF-8 never uses
        known = np.where((numbers >= 0) & (numbers <= invalid), numbers, invalid)
        return known.astype(np.uint8).tobytes().decode("utf-8", "replace")


class JsonTokenizer:
    """A tokenizer of the `tokenizers` library.

    It encodes text as text: nothing is truncated or padded, and a document in which an author wrote `<|endoftext|>`
    does not end there.
    """

    def __init__(self, path: Path) -> None:
        try:
            library = importlib.import_module("tokenizers")
        except ImportError:
            raise fail(str(path), "needs a package: pip install tokenizers") from None
        self.json: str | None = _read(path)
        try:
            self._tokenizer = library.Tokenizer.from_str(self.json)
        except Exception as error:  # the library raises nothing more particular
            raise fail(str(path), f"is not a file of the tokenizers library: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocabulary = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 < self.vocabulary <= MAX_VOCABULARY:
            raise fail(str(path), f"has a vocabulary of {self.vocabulary}; use one that has tokens")
        ids = (self._tokenizer.token_to_id(name) for name in END_OF_TEXT)
        self.separator: int | None = next((i for i in ids if i is not None), None)
        self._special = self._specials()
        self.begin: int | None = self._begin()

    def _specials(self) -> tuple[str, ...]:
        """Return the texts of special tokens."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special and token.content)

    def _begin(self) -> int | None:
        """Return the token that the file's post-processor puts before a text, if it is one, as models know it."""
        bare, put = (self._tokenizer.encode("a", add_special_tokens=adds).ids for adds in (False, True))
        alone = len(put) > len(bare) and put[1 : 1 + len(bare)] == bare
        return int(put[0]) if alone and (bare or self._tokenizer.num_special_tokens_to_add(False) == 1) else None

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the tokens of a text; half a surrogate pair, which is no text, becomes "?"."""
        sound = text.encode("utf-8", "replace").decode("utf-8")
        ids = self._tokenizer.encode(sound, add_special_tokens=False).ids
        return np.asarray(ids, dtype=np.int64)

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Encode all together, as a chat is encoded that a model is to answer.

        A token belongs to the piece in which it begins. Where a piece that is not `special` quotes a special token,
        neighbours are encoded together that are alike in `special`.
        """
        quotes = any(special in piece.text for piece in pieces if not piece.special for special in self._special)
        tokens, counts = [], []
        for special, group in groupby(pieces, key=lambda piece: piece.special or not quotes):
            together = list(group)
            ids, number = self._encode_together([piece.text for piece in together], special=special)
            tokens.append(ids)
            counts.append(np.asarray([piece.counts for piece in together])[number])
        return np.concatenate(tokens), np.concatenate(counts)

    def _encode_together(self, texts: Sequence[str], *, special: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        sound = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        self._tokenizer.encode_special_tokens = not special
        try:
            found = self._tokenizer.encode("".join(sound), add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = True
        begins = np.asarray([begin for begin, _ in found.offsets], dtype=np.int64)
        ends = np.cumsum([len(text) for text in sound])
        number = np.minimum(np.searchsorted(ends, begins, side="right"), len(texts) - 1)
        return np.asarray(found.ids, dtype=np.int64), number

    def decode(self, tokens: TokenIds) -> str:
        """Return the text; what is no token is left out."""
        known = [int(t) for t in tokens if 0 <= t < self.vocabulary]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))


def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer that a data set was built with."""
    manifest = read_manifest(directory)
    if manifest.tokenizer == "bytes":
        return ByteTokenizer()
    tokenizer = JsonTokenizer(directory / TOKENIZER)
    if tokenizer.vocabulary != manifest.vocabulary:
        raise fail(
            str(directory / TOKENIZER),
            f"has a vocabulary of {tokenizer.vocabulary}, but the data was built "
            f"with one of {manifest.vocabulary}; {rebuild(directory)}",
        )
    tokenizer.begin = manifest.begin
    return tokenizer


def begun(tokenizer: Tokenizer, tokens: NDArray[Any]) -> NDArray[Any]:
    """Return the tokens of a text behind the one that begins it, if there is such a one."""
    return tokens if tokenizer.begin is None else np.concatenate([np.array([tokenizer.begin], np.int64), tokens])


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise fail(str(path), f"too large for a tokenizer; at most {MAX_TOKENIZER_BYTES >> 20} MiB are read")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise fail(str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise fail(str(path), "is not a file of the tokenizers library: not UTF-8") from None
