"""What a study trains on: distinct texts, each from a document of its own, and other text beside.

Documents are read in their order until there are enough; whoever reads the same source finds the same. Every seed
deals the texts out anew, so that a text that one seed repeats is another's control.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.data.documents import jsonl_documents, standard_library_documents, text_documents
from runtime.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer
from runtime.memorize.study import BYTES, RANDOM, LoadedStudy, Texts, trained
from twin.description.job import Job
from twin.description.problems import fail
from twin.description.train import STANDARD_LIBRARY

JSON_LINES = ".jsonl"
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """All text of a study."""

    texts: Tokens
    """(texts, sequence + 1 + shift)"""
    background: Tokens
    """Other text: (windows, sequence + 1)"""

    @property
    def digest(self) -> str:
        """Digest of all tokens."""
        return hashlib.sha256(self.texts.tobytes() + self.background.tobytes()).hexdigest()

    def deal(self, repeats: Mapping[int, int], seed: int) -> dict[int, NDArray[np.int64]]:
        """Return which texts come how often, by number: each text is in one bucket."""
        order = np.random.default_rng([seed, 0]).permutation(len(self.texts))
        ends = np.cumsum(list(repeats.values()))
        return {
            times: np.sort(order[end - count : end]) for (times, count), end in zip(repeats.items(), ends, strict=True)
        }


def read_pool(loaded: LoadedStudy) -> Pool:
    """Read the text of a study; raises DescriptionError if there is not enough, or if a model does not know a token."""
    texts = loaded.study.texts
    jobs = list(loaded.jobs.values())
    length = jobs[0].model.sequence + 1
    vocabulary = min(job.model.vocabulary for job in jobs)
    count = sum(texts.repeats.values())
    windows = max(background_windows(texts, job) for job in jobs)
    if texts.source == RANDOM:
        draw = np.random.default_rng([jobs[0].seed, 1])
        return Pool(
            draw.integers(vocabulary, size=(count, length + texts.shift)),
            draw.integers(vocabulary, size=(windows, length)),
        )
    documents = _tokens(loaded, vocabulary)
    return Pool(_texts(documents, texts, count, length + texts.shift), _background(documents, texts, windows, length))


def background_windows(texts: Texts, job: Job) -> int:
    """Count the sequences of a training that are none of the texts."""
    return job.train.steps * job.batch.sequences - trained(texts)


def _texts(documents: Iterator[Tokens], texts: Texts, count: int, length: int) -> Tokens:
    """Take a text from each document that is long enough, until there are enough; no text twice."""
    found: dict[bytes, Tokens] = {}
    for tokens in documents:
        if len(tokens) >= length:
            first = (len(tokens) - length) // 2 if texts.begin == "middle" else 0
            text = tokens[first : first + length]
            found.setdefault(text.tobytes(), text)
        if len(found) == count:
            return np.stack(list(found.values()))
    raise fail(
        "texts.source",
        f"has {len(found):,} distinct documents of at least {length:,} tokens, but texts.repeats asks for {count:,}; "
        "give more text, fewer texts, or a shorter model.sequence",
        texts.source,
    )


def _background(documents: Iterator[Tokens], texts: Texts, windows: int, length: int) -> Tokens:
    """Cut the documents that are left into windows, until there are enough."""
    found = list[Tokens]()
    while len(found) < windows:
        tokens = next(documents, None)
        if tokens is None:
            raise fail(
                "texts.source",
                f"has {len(found):,} sequences of text beside the texts, but the steps need {windows:,}; give more "
                "text, or fewer steps (train.steps, texts.background_steps)",
                texts.source,
            )
        found += [tokens[begin : begin + length] for begin in range(0, len(tokens) - length + 1, length)]
    return np.stack(found[:windows]) if windows else np.empty((0, length), np.int64)


def _tokens(loaded: LoadedStudy, vocabulary: int) -> Iterator[Tokens]:
    texts, tokenizer = loaded.study.texts, _tokenizer(loaded)
    for number, document in enumerate(_documents(loaded), start=1):
        tokens = tokenizer.encode(document).astype(np.int64)
        if len(tokens) and int(tokens.max()) >= vocabulary:
            raise fail(
                "texts.source",
                f"document {number} has token {int(tokens.max())}, beyond the model's vocabulary of {vocabulary}; set "
                f"model.vocabulary to at least {tokenizer.vocabulary}",
                texts.source,
            )
        yield tokens


def _tokenizer(loaded: LoadedStudy) -> Tokenizer:
    name = loaded.study.texts.tokenizer
    return ByteTokenizer() if name == BYTES else JsonTokenizer(loaded.folder / name)


def _documents(loaded: LoadedStudy) -> Iterator[str]:
    texts = loaded.study.texts
    if texts.source == STANDARD_LIBRARY:
        return standard_library_documents()
    path = loaded.folder / texts.source
    return jsonl_documents([path], texts.key) if _holds_lines(path) else text_documents([path])


def _holds_lines(path: Path) -> bool:
    return path.suffix == JSON_LINES or (path.is_dir() and any(path.glob(f"*{JSON_LINES}")))
