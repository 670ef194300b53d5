"""What a run reads: the data set that it is trained on, or several, and those that it is evaluated on besides."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from runtime.data.batches import Batches
from runtime.data.build import default_dataset
from runtime.data.manifest import OF_TOKENIZER, TOKENIZER, Manifest
from runtime.data.mixture import Mixture
from runtime.data.tokenizer import END_OF_TEXT
from runtime.data.tokens import DataSet, TokenFile, open_dataset
from twin.description.job import Job
from twin.description.mixture import parts_of, whole_weights
from twin.description.problems import DescriptionError, Problem, fail
from twin.description.train import STANDARD_LIBRARY, Train


@dataclass(frozen=True)
class Sources:
    """Data sets, opened and checked against the model."""

    parts: tuple[DataSet, ...]
    """Trained on: one, or those of a mixture. Their held-out parts are what validation loss is of."""
    weights: tuple[int, ...] = (1,)
    """Of the parts, whole and in lowest terms."""
    evaluated: Mapping[str, DataSet] = field(default_factory=dict)
    """By name: those whose held-out parts are looked at too."""

    @property
    def directory(self) -> Path:
        """Where the tokenizer of all of them is: the first one's directory."""
        return self.parts[0].directory

    @property
    def tokens(self) -> int:
        """Tokens to be trained on in all parts."""
        return sum(part.manifest.train.tokens for part in self.parts)

    def samples(self, job: Job) -> Batches | Mixture:
        """Return what a job is trained on, by number."""
        return mixed([batches_of(part.train, job) for part in self.parts], self.weights)

    def held_out(self, job: Job) -> Batches | Mixture:
        """Return what its validation loss is of: held-out parts in the order of the files, by the same weights."""
        return mixed([batches_of(part.validation, job, shuffle=False) for part in self.parts], self.weights)

    def identity(self) -> dict[str, Any]:
        """Return what must stay the same when a run is continued, wherever the data sets lie."""
        first, *others = [part.manifest.model_dump(mode="json") for part in self.parts]
        data = first
        if others:
            mixture = [
                {"weight": weight, "data": each} for weight, each in zip(self.weights, [first, *others], strict=True)
            ]
            data = {**{key: first[key] for key in OF_TOKENIZER}, "mixture": mixture}
        evaluated = {name: found.manifest.model_dump(mode="json") for name, found in self.evaluated.items()}
        # runs of before there were sets of evaluation have no such key
        return {"data": data, "evaluation_sets": evaluated or None}


def batches_of(tokens: TokenFile, job: Job, *, shuffle: bool = True) -> Batches:
    """Return the samples of one file for a job's model."""
    return Batches(tokens, job.model.sequence, job.seed, job.model.vocabulary, shuffle)


def mixed(parts: Sequence[Batches], weights: Sequence[int]) -> Batches | Mixture:
    """Return samples of all parts; one part alone needs no mixture."""
    return parts[0] if len(parts) == 1 else Mixture(parts, weights)


def open_sources(job: Job, train: Train) -> Sources:
    """Open all data sets of a job; raises DescriptionError with everything that is wrong with any."""
    given = parts_of(train.data)
    keys = ["train.data"] if isinstance(train.data, str) else [f"train.data.{i}.path" for i in range(len(given))]
    keys += [f"train.evaluation.sets.{name}" for name in train.evaluation.sets]
    found, problems = dict[str, DataSet](), list[Problem]()
    for key, path in zip(keys, [*(part.path for part in given), *train.evaluation.sets.values()], strict=True):
        try:
            opened = open_dataset(data_directory(path), vocabulary=job.model.vocabulary, sequence=job.model.sequence)
            if job.document_mask:
                check_documents(opened, key)
            if found:
                check_tokenizers(next(iter(found.values())), opened, key)
            found[key] = opened
        except DescriptionError as error:
            problems += [problem if len(keys) == 1 else _below(key, problem) for problem in error.problems]
    if problems:
        raise DescriptionError(problems)
    opened_all = list(found.values())
    check_distinct(dict(list(found.items())[: len(given)]))
    evaluated = dict(zip(train.evaluation.sets, opened_all[len(given) :], strict=True))
    sources = Sources(tuple(opened_all[: len(given)]), whole_weights(given), evaluated)
    check_targets(sources.held_out(job), train.evaluation.sequences, "train.data")
    for name, each in evaluated.items():
        looked_at = batches_of(each.validation, job, shuffle=False)
        check_targets(looked_at, train.evaluation.sequences, f"train.evaluation.sets.{name}")
    return sources


def check_distinct(parts: Mapping[str, DataSet]) -> None:
    """Refuse a mixture that has one data set twice, by whatever name; raises DescriptionError."""
    seen: dict[str, str] = {}
    for key, part in parts.items():
        known = part.manifest.train.sha256
        if known in seen:
            remedy = f"holds what {seen[known]} holds; give it once, with the sum of the weights"
            raise fail(key, remedy, str(part.directory))
        seen[known] = key


def check_targets(held_out: Batches | Mixture, sequences: int, key: str) -> None:
    """Refuse held-out sequences none of whose targets counts, as of conversations without answers."""
    for number in range(min(sequences, held_out.windows)):
        counts = held_out.targets(number, 1)
        if counts is None or counts.any():
            return
    if sequences:
        remedy = f"none of the first {sequences} held-out sequences has a target that counts"
        raise fail(key, f"{remedy}; raise train.evaluation.sequences, or build it with more answers")


def _below(key: str, problem: Problem) -> Problem:
    """Say which key has brought a problem of a data set."""
    if problem.path == key:
        return problem
    return Problem(f"{key}: {problem.path}", problem.message, problem.value)


def check_documents(data: DataSet, key: str) -> None:
    """Refuse, for a job with `document_mask`, a data set in which nothing says where documents begin."""
    manifest = data.manifest
    if manifest.separator is None and manifest.sequence is None:
        raise fail(
            key,
            f"its tokenizer has no token between documents ({', '.join(END_OF_TEXT)}), so that where one begins is not "
            "known; set document_mask to false, or build it with a tokenizer that has one",
            str(data.directory),
        )


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
