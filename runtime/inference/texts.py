"""What a loss is asked for: a data set's held-out part, or documents, each scored by itself.

A document begins after the tokenizer's separator, as in training, so that its first token is predicted too; without
a separator the first token only predicts. A window has s + 1 tokens, its last one the first of the next; what fills no
window is padded, and padding weighs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.data.documents import jsonl_documents, text_documents
from runtime.data.tokenizer import Tokenizer
from runtime.inference.loss import Window, windows_of
from runtime.inference.trained import TrainedRun
from runtime.plan.sources import data_directory, open_sources
from twin.description.mixture import parts_of
from twin.description.model import Model
from twin.description.problems import fail
from twin.description.train import Evaluation

JSON_LINES = ".jsonl"


@dataclass(frozen=True)
class Scored:
    """Text to be scored."""

    name: str
    """For people: what it is."""
    count: int
    """Windows."""
    windows: Callable[[], Iterator[Window]]
    documents: int | None = None
    """Documents that they come from, where each is scored by itself."""
    padded: int = 0
    """Windows that are not full."""


def text_of(run: TrainedRun, data: Path | None, sequences: int | None, key: str) -> Scored:
    """Find what is to be scored: a data set, by default the run's own, or one of its evaluation by name, or a file.

    Raises DescriptionError.
    """
    named = run.job.train.evaluation.sets
    if data is not None and not data.exists() and str(data) in named:
        data = run.check_there(data_directory(named[str(data)]))
    if data is None or data.is_dir():
        return _held_out(run, data, sequences)
    if not data.is_file():
        raise fail(str(data), f"no such data set or file (--data){_named(named)}")
    documents = partial(_documents, data, key, run.tokenizer(), run.job.model)
    return _scored_alone(data, documents, run.job.model.sequence, sequences)


def _named(sets: Mapping[str, str]) -> str:
    return f"; the run's own sets by name are {', '.join(sets)}" if sets else ""


def _held_out(run: TrainedRun, data: Path | None, sequences: int | None) -> Scored:
    """As training evaluates: the first sequences of what is held out, by default as many."""
    job = run.job
    if data is None:
        for part in parts_of(job.train.data):
            run.check_there(data_directory(part.path))
    train = job.train.model_copy(update={"evaluation": Evaluation(), **({} if data is None else {"data": str(data)})})
    found = open_sources(job, train)
    identity = found.identity()["data"]
    name = " and ".join(str(part.directory) for part in found.parts)
    run.check_tokenizer(identity, found.directory)
    if data is None and identity != run.data:
        raise fail(
            name,
            "is not any more what the run was trained on; say where that is now (--set train.data=DIR), or score this "
            "one by name (--data)",
        )
    batches = found.held_out(job)
    count = min(sequences or job.train.evaluation.sequences or batches.windows, batches.windows)
    told = f"the first {count:,} of {batches.windows:,} held-out sequences of {name}"
    return Scored(told, count, lambda: windows_of(batches, count))


def _scored_alone(
    path: Path, documents: Callable[[], Iterator[NDArray[np.int64]]], sequence: int, most: int | None
) -> Scored:
    """Count the windows first, so that all ranks agree on what is there before any computes."""
    texts = padded = count = 0
    last = -1
    for number, window in islice(_windows(documents, sequence), most):
        texts, last = texts + (number != last), number
        padded += window.targets < sequence
        count += 1
    if not count:
        raise fail(str(path), "holds no text to predict; give some (--data)")

    def windows() -> Iterator[Window]:
        return (window for _, window in islice(_windows(documents, sequence), most))

    return Scored(f"the documents of {path}", count, windows, texts, padded)


def _windows(documents: Callable[[], Iterator[NDArray[np.int64]]], sequence: int) -> Iterator[tuple[int, Window]]:
    for number, tokens in enumerate(documents()):
        for begin in range(0, len(tokens) - 1, sequence):
            piece = tokens[begin : begin + sequence + 1]
            yield number, Window(len(piece) - 1, partial(_padded, piece, sequence + 1))


def _padded(piece: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return np.pad(piece, (0, length - len(piece)))


def _documents(path: Path, key: str, tokenizer: Tokenizer, model: Model) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of each document that has any, behind the one that begins a text, or the separator."""
    texts = jsonl_documents([path], key) if path.suffix == JSON_LINES else text_documents([path])
    first = tokenizer.separator if tokenizer.begin is None else tokenizer.begin
    before = [] if first is None else [first]
    for number, text in enumerate(texts, start=1):
        tokens = np.concatenate([np.array(before, np.int64), tokenizer.encode(text).astype(np.int64)])
        if len(tokens) == len(before):
            continue
        if (largest := int(tokens.max())) >= model.vocabulary:
            raise fail(
                str(path),
                f"document {number} has token {largest}, beyond the model's vocabulary of {model.vocabulary}; "
                "leave it out",
            )
        yield tokens
