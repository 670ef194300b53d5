"""What a run reads: the data set that it is trained on, and those that it is evaluated on besides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from runtime.data.build import default_dataset
from runtime.data.manifest import TOKENIZER, Manifest
from runtime.data.tokens import DataSet, open_dataset
from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem, fail
from twin.description.train import STANDARD_LIBRARY, Train


@dataclass(frozen=True)
class Sources:
    """Data sets, opened and checked against the model."""

    data: DataSet
    """Trained on; its held-out part is what validation loss is of."""
    evaluated: Mapping[str, DataSet] = field(default_factory=dict)
    """By name: those whose held-out parts are looked at too."""

    def identity(self) -> dict[str, Any]:
        """Return what must stay the same when a run is continued, wherever the data sets lie."""
        evaluated = {name: found.manifest.model_dump(mode="json") for name, found in self.evaluated.items()}
        return {
            "data": self.data.manifest.model_dump(mode="json"),
            "evaluation_sets": evaluated or None,  # runs of before there were any have no such key
        }


def open_sources(job: Job, train: Train) -> Sources:
    """Open all data sets of a job; raises DescriptionError with everything that is wrong with any."""
    data = _opened(job, data_directory(train.data))
    evaluated, problems = dict[str, DataSet](), list[Problem]()
    for name, given in train.evaluation.sets.items():
        key = f"train.evaluation.sets.{name}"
        try:
            evaluated[name] = _opened(job, data_directory(given))
            check_tokenizers(data, evaluated[name], key)
        except DescriptionError as error:
            problems += [_below(key, problem) for problem in error.problems]
    if problems:
        raise DescriptionError(problems)
    return Sources(data, evaluated)


def _below(key: str, problem: Problem) -> Problem:
    """Say which key has brought a problem of a data set."""
    if problem.path == key:
        return problem
    return Problem(f"{key}: {problem.path}", problem.message, problem.value)


def check_tokenizers(first: DataSet, other: DataSet, key: str) -> None:
    """Refuse a data set whose tokens are other words than the first one's; raises DescriptionError, with its key."""
    ours, theirs = tokenizer_of(first.directory, first.manifest), tokenizer_of(other.directory, other.manifest)
    for what, mine in ours.items():
        if theirs[what] != mine:
            raise fail(
                key,
                f"has {what} {theirs[what]}, but {first.directory} has {mine}: the same token is another word there; "
                "build both with one tokenizer",
                str(other.directory),
            )


def tokenizer_of(directory: Path, manifest: Manifest) -> dict[str, object]:
    """Return what is alike in data sets whose tokens mean the same."""
    named: dict[str, object] = {"tokenizer": manifest.tokenizer}
    if manifest.tokenizer != "bytes":
        path = directory / TOKENIZER
        try:
            named["tokenizer.json of sha256"] = sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise fail(str(path), f"cannot be read: {error.strerror}; build the data set again") from None
    return {**named, "vocabulary": manifest.vocabulary, "separator": manifest.separator}


def data_directory(given: str) -> Path:
    """Return where a data set is that a job names; the standard library's is built if it is not there yet."""
    return default_dataset(cache_directory()) if given == STANDARD_LIBRARY else Path(given)


def cache_directory() -> Path:
    """Where data sets are kept that Fourfold makes by itself."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fourfold"


def _opened(job: Job, directory: Path) -> DataSet:
    return open_dataset(directory, vocabulary=job.model.vocabulary, sequence=job.model.sequence)
