"""The study file: a job, the texts that it is trained on, the masks and the values of k that are compared.

    job: {model: {…}, machine: laptop, batch: {…}, train: {steps: 200, …}}      # or the path of one
    texts: {source: standard-library, repeats: {0: 16, 200: 16}, suffix: 32}
    masks: {hash: [2, 4, inf], random: [4]}
    seeds: 3

No torch here, so that what is wrong is said before any rank starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from runtime.plan.options import located
from twin.description.job import Job
from twin.description.load import apply_override, with_value
from twin.description.problems import DescriptionError, Problem, from_pydantic
from twin.description.spec import Spec
from twin.description.strict_yaml import read_yaml
from twin.description.train import STANDARD_LIBRARY, Mask
from twin.strategies import load_job

RANDOM = "random"
"""As `texts.source`: tokens drawn from the seed, all equally likely."""
BYTES = "bytes"
EVERY_TARGET = "inf"
"""As a value of k: no target is dropped."""
MIN_K, MAX_CELLS = 2, 10_000
NOT_IN_JOB = {
    "goldfish": "the masks of the study say that",
    "elastic": "a study stays on its grid",
    "rollback": "a study takes every step",
}
"""Keys of `train:` that a study does not let its job decide."""


def _read_k(raw: Any) -> Any:
    if raw == EVERY_TARGET or raw == float("inf"):
        return None
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < MIN_K:
        raise ValueError(f"expected a whole number from {MIN_K} on, or {EVERY_TARGET}")
    return raw


K = Annotated[int | None, BeforeValidator(_read_k)]
"""One of so many targets is dropped; None (`inf` in the file): none."""
Count = Annotated[int, Field(ge=0, le=10**7)]
Positive = Annotated[int, Field(ge=1, le=10**7, strict=True)]


class Texts(Spec):
    """Which texts are trained on how often, and how they are asked for."""

    source: str
    """standard-library, random, or the path of text files or of JSON lines (.jsonl); each document gives one text."""
    key: str = "text"
    """Key of the text in JSON lines."""
    tokenizer: str = BYTES
    """bytes, or the path of a file of the tokenizers library."""
    begin: Literal["start", "middle"] = "start"
    """Where in its document a text begins."""
    repeats: dict[Count, Positive]
    """So many texts that come so often; those that come 0 times are the control."""
    suffix: Positive
    """The model is to write so many tokens, as likely as it can."""
    prefix: Positive | None = None
    """It is given so many tokens from the beginning of the text; if absent all but the suffix."""
    shift: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 0
    """Every other time a text comes, it begins so many tokens later."""
    background_steps: Annotated[int, Field(ge=0, le=10**9, strict=True)] = 0
    """So many steps at first, of other text alone."""


class Study(Spec):
    """One study."""

    title: str = ""
    """For people; the name of the file if absent."""
    job: dict[str, Any]
    """The job that is trained, or the path of its file from the study's directory."""
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Models that are compared: a name, and keys of the job such as `model.hidden` with their values."""
    texts: Texts
    """What is trained on."""
    masks: Annotated[dict[Mask, Annotated[list[K], Field(min_length=1)]], Field(min_length=1)]
    """Masks of the Goldfish loss, and for each the values of k; `inf` drops nothing."""
    h: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 13
    """Tokens that a hash is made of."""
    seeds: Annotated[int, Field(ge=1, le=1000, strict=True)] = 3
    """Every training is done so often, with other weights, another order and other texts."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        repeats = self.texts.repeats
        if 0 not in repeats:
            problems.append("texts.repeats: has no control; add `0: N`, texts that are never trained on")
        if not any(repeats):
            problems.append("texts.repeats: trains on no text; add how often, and how many")
        for mask, values in self.masks.items():
            if len(set(values)) < len(values):
                problems.append(f"masks.{mask}: has a value twice; keep one")
        problems += [
            f"models.{name}: is empty; give it keys of the job" for name, keys in self.models.items() if not keys
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self


@dataclass(frozen=True)
class LoadedStudy:
    """A study file, read; its jobs are checked but not settled."""

    study: Study
    name: str
    folder: Path
    """Where relative paths start from."""
    jobs: Mapping[str, Job]
    """By the name of the model."""

    @property
    def title(self) -> str:
        """Title for people."""
        return self.study.title or self.name

    def digest(self, jobs: Mapping[str, Job]) -> str:
        """Digest of everything that decides the figures but the texts themselves; `jobs` are settled."""
        asked = self.study.model_dump(mode="json", exclude={"job", "models", "title"})
        stated = {"study": asked, "jobs": {name: job.model_dump(mode="json") for name, job in jobs.items()}}
        return hashlib.sha256(json.dumps(stated, sort_keys=True, default=str).encode()).hexdigest()


def load_study(path: Path, overrides: Sequence[str] = ()) -> LoadedStudy:
    """Read a study file; `overrides` are `KEY=VALUE` for any of its keys, those of the job below `job.`.

    Raises DescriptionError.
    """
    raw = dict(read_yaml(path))
    folder = of_job = path.parent
    if isinstance(raw.get("job"), str):
        file = folder / raw["job"]
        raw["job"], of_job = {"name": file.stem, **read_yaml(file)}, file.parent
    for override in overrides:
        raw = apply_override(raw, override)
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, Study), str(path)) from None
    base = _anchored({"name": path.stem, **study.job}, of_job)
    jobs = {name: _job(base, name, keys, of_job, path) for name, keys in (study.models or {"": {}}).items()}
    problems = [
        *_files(study, jobs, folder),
        *_of_all(study, jobs),
        *(problem for job in jobs.values() for problem in _problems(study, job)),
    ]
    if problems:
        raise DescriptionError(list(dict.fromkeys(problems)), str(path))
    return LoadedStudy(study, path.stem, folder, jobs)


def _anchored(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Let the path of a machine start from the folder, if there is such a file there."""
    machine = raw.get("machine")
    if isinstance(machine, str) and machine.endswith((".yaml", ".yml")) and (folder / machine).is_file():
        return {**raw, "machine": str((folder / machine).resolve())}
    return raw


def _job(base: Mapping[str, Any], name: str, keys: Mapping[str, Any], folder: Path, origin: Path) -> Job:
    """Make the job of one model; problems are told with the key they stand below."""
    raw, where = dict(base), f"models.{name}" if name else "job"
    train = raw.get("train")
    given = [key for key in NOT_IN_JOB if isinstance(train, dict) and key in train]
    given += [key for key in NOT_IN_JOB if f"train.{key}" in keys]
    if given:
        raise DescriptionError(
            [Problem(f"job.train.{key}", f"leave it out; {NOT_IN_JOB[key]}") for key in given], str(origin)
        )
    try:
        for key, value in keys.items():
            raw = with_value(raw, key, value)
        job = load_job(raw)
    except DescriptionError as error:
        told = [Problem(f"{where}.{p.path}".rstrip("."), p.message, p.value) for p in error.problems]
        raise DescriptionError(told, str(origin)) from None
    return job.model_copy(update={"train": located(job.train, folder)})


def _files(study: Study, jobs: Mapping[str, Job], folder: Path) -> list[Problem]:
    """See that what a study reads is there, before any rank starts."""
    texts, found = study.texts, []
    if texts.source not in {STANDARD_LIBRARY, RANDOM} and not (path := folder / texts.source).exists():
        found.append(
            Problem(
                "texts.source",
                f"there is no {path}; put text there, a document a file or a line of JSON lines (.jsonl), or name the "
                f"place: --set texts.source=PATH. Without text of your own: {STANDARD_LIBRARY}, {RANDOM}",
                texts.source,
            )
        )
    if texts.tokenizer != BYTES and not (path := folder / texts.tokenizer).is_file():
        found.append(Problem("texts.tokenizer", f"there is no {path}; name a file, or {BYTES}", texts.tokenizer))
    for job in jobs.values():
        weights = job.train.initial_weights
        if weights is not None and not Path(weights).is_file():
            found.append(
                Problem("train.initial_weights", "there is no such file; name a full model, or leave it out", weights)
            )
    return found


def _of_all(study: Study, jobs: Mapping[str, Job]) -> list[Problem]:
    found = []
    cells = len(jobs) * sum(map(len, study.masks.values())) * study.seeds
    if cells > MAX_CELLS:
        found.append(Problem("masks", f"ask for {cells:,} trainings, at most {MAX_CELLS:,}"))
    if len({job.model.sequence for job in jobs.values()}) > 1:
        found.append(Problem("models", "differ in model.sequence, so in their texts; give all the same"))
    if len({job.ranks for job in jobs.values()}) > 1:
        found.append(Problem("models", "differ in ranks; give all the same"))
    return found


def _problems(study: Study, job: Job) -> list[Problem]:
    """Hold texts, steps and the model's sequence against each other."""
    texts, length = study.texts, job.model.sequence + 1
    found = []
    prefix = texts.prefix or length - texts.suffix
    if prefix < 1 or prefix + texts.suffix > length:
        found.append(
            Problem(
                "texts.suffix",
                f"with a prefix of {max(prefix, 1):,} a text would have {max(prefix, 1) + texts.suffix:,} tokens, "
                f"but a sequence and the token after it are {length:,} (model.sequence)",
                texts.suffix,
            )
        )
    if texts.background_steps >= job.train.steps:
        found.append(
            Problem(
                "texts.background_steps",
                f"leaves none of {job.train.steps:,} steps for the texts (train.steps)",
                texts.background_steps,
            )
        )
    slots = (job.train.steps - texts.background_steps) * job.batch.sequences
    if (needed := trained(texts)) > slots > 0:
        steps = texts.background_steps + -(-needed // job.batch.sequences)
        found.append(
            Problem(
                "texts.repeats",
                f"need {needed:,} sequences, but there are {slots:,}; set train.steps to at least {steps:,}",
            )
        )
    return found


def trained(texts: Texts) -> int:
    """Count the sequences of the texts that are trained on, with repetitions."""
    return sum(times * count for times, count in texts.repeats.items())


def prefix_of(texts: Texts, sequence: int) -> int:
    """Return how many tokens of a text the model is given."""
    return texts.prefix or sequence + 1 - texts.suffix
