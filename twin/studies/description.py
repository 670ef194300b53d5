"""The study file: a base job, what varies, and what is asked of the points.

    study: strong_scaling
    job: ../gpt-320b-frontier-32768.yaml      # or a mapping
    vary: {model: [gpt-80b, gpt-640b], ranks: [128, 256, 512]}

Keys of `vary`, `points`, `set` and `parameters` are keys of the job or, below `machine.`, of its
machine: whatever `--set` reaches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, ValidationError, field_validator, model_validator

from twin.description.huggingface import CONFIG, is_directory_of, located
from twin.description.load import apply_override
from twin.description.parameter import Kind
from twin.description.paths import is_path, with_absolute_paths
from twin.description.problems import DescriptionError, Problem, did_you_mean, fail, from_pydantic
from twin.description.spec import Spec
from twin.description.strict_yaml import read_yaml
from twin.description.units import SUFFIXES, format_si, parse_quantity
from twin.studies.formulas import own_factors, problems_of
from twin.studies.objective import ObjectiveName

StudyKind = Literal["sweep", "weak_scaling", "strong_scaling", "sensitivity", "target"]
SCALING: tuple[StudyKind, ...] = ("weak_scaling", "strong_scaling")
CHOSEN_GRIDS: tuple[StudyKind, ...] = (*SCALING, "target")
"""Kinds whose points choose their own grid unless the file says otherwise."""
NAME_FILES = ("machine", "model")
"""Keys of a job below which files are named that decide what is predicted."""
MAX_POINTS = 10_000
MAX_TOKENS = 1e18

Share = Annotated[float, Field(gt=0, lt=1)]


class Target(Spec):
    """A training run to price: how many tokens, and what an hour of a GPU costs."""

    tokens: Annotated[float, Field(gt=0, le=MAX_TOKENS, allow_inf_nan=False)] | None = None
    """Tokens to train on."""
    tokens_per_parameter: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    """In place of them: tokens for each parameter of a point's model, 20 by the rule of arXiv 2203.15556."""
    price_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Price of one device for an hour; a GCD counts as one device."""
    currency: str = "USD"
    """Unit of the price."""

    @field_validator("tokens", mode="before")
    @classmethod
    def _read_tokens(cls, raw: Any) -> Any:
        return None if raw is None else parse_quantity(raw, SUFFIXES["_tokens"])

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if (self.tokens is None) == (self.tokens_per_parameter is None):
            raise ValueError("give either tokens or tokens_per_parameter")
        return self

    def tokens_of(self, parameters: float) -> float:
        """Return the tokens that a model of so many parameters is trained on."""
        return self.tokens if self.tokens is not None else float(self.tokens_per_parameter or 0.0) * parameters

    @property
    def words(self) -> str:
        """The tokens in words."""
        if self.tokens is not None:
            return format_si(self.tokens, "tokens")
        return f"{self.tokens_per_parameter:g} tokens a parameter"


class Measured(Spec):
    """A measured point, drawn beside the predicted one and never fitted."""

    at: dict[str, Any]
    """Values of varied keys that name the point, such as `{model: gpt-80b, ranks: 8192}`."""
    step_seconds: Annotated[float, Field(ge=1e-9, allow_inf_nan=False)]
    """Seconds of one step."""
    source: str
    """Where it was published or measured."""
    note: str = ""
    """What a reader should know about it."""


class Study(Spec):
    """One study."""

    study: StudyKind
    title: str = ""
    """For people; the name of the file if absent."""
    job: str | dict[str, Any]
    """Path of the base job, from the study file's directory, or the job itself."""
    overrides: dict[str, Any] = Field(default_factory=dict, alias="set")
    """Keys set in every point."""
    vary: dict[str, list[Any] | dict[str, Any]] = Field(default_factory=dict)
    """Keys and their values; every combination is a point. A mapping names the values."""
    formulas: dict[str, str] = Field(default_factory=dict)
    """Keys that follow from others at each point, such as `batch.sequences: grid.data * 4`, in this order. Varied names
    that no job has may be used there: `ranks: nodes * 8`."""
    objective: ObjectiveName = "step_seconds"
    """What the best point of a sweep is best in, and what the importance of its factors is about."""
    only_fitting: StrictBool = False
    """Points that do not fit into memory are refused, and not simulated: most of a large space does not."""
    points: list[dict[str, Any]] = Field(default_factory=list)
    """Points written out, each a mapping of keys; combined with all of `vary`."""
    x: str | None = None
    """Key that pictures show along the horizontal axis."""
    grid: Literal["auto", "keep"] | None = None
    """auto: each point chooses grid and micro-batch; keep: the job's. By default auto for scaling and target."""
    engine: Literal["folded", "des", "ranks"] = "folded"
    """Engine of every point."""
    seeds: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """With `engine: ranks`, draws for each point: figures get percentiles."""
    target: Target | None = None
    """Tokens to train on: adds time, energy, GPU hours and cost."""
    parameters: list[str] | dict[str, list[Any]] | None = None
    """Sensitivity: keys to move, or their two values; by default every parameter of the machine."""
    change: Share | dict[Kind, Share] = 0.2
    """Sensitivity: relative change down and up, or one for each kind of parameter."""
    measured: Literal["published"] | list[Measured] = Field(default_factory=list)
    """Points to show beside: those of published runs that come with Fourfold, or your own."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if self.study == "sensitivity":
            problems += [
                f"{key}: is not for a sensitivity study; use parameters"
                for key in ("vary", "points")
                if getattr(self, key)
            ]
            if self.parameters is not None and not self.parameters:
                problems.append("parameters: is empty; name keys, or leave it out for all of the machine's")
        else:
            if not self.vary and not self.points:
                problems.append("vary: nothing varies; give vary, points or both")
            if self.parameters is not None:
                problems.append("parameters: is for a sensitivity study; use vary")
        problems += [f"vary.{key}: has no values; give at least one" for key, values in self.vary.items() if not values]
        problems += [
            f"vary.{key}: has a value twice; keep one" for key, values in self.vary.items() if has_twice(values)
        ]
        both = sorted({key for point in self.points for key in point} & set(self.vary))
        problems += [f"vary.{key}: is also in points; keep one" for key in both]
        problems += [f"points.{i}: is empty; give it keys" for i, p in enumerate(self.points) if not p]
        if self.seeds > 1 and self.engine != "ranks":
            problems.append("seeds: is for engine: ranks; the other engines draw nothing")
        if self.study == "target" and self.target is None:
            problems.append("target: missing; give target: {tokens: …}")
        if self.study in SCALING and "ranks" not in self.varied:
            problems.append("vary: scaling studies vary ranks; add ranks to vary or points")
        problems += problems_of(self.varied, self.formulas)
        if self.formulas and self.study == "sensitivity":
            problems.append("formulas: are not for a sensitivity study; leave them out")
        if self.x is not None and self.x not in self.varied:
            problems.append(f"x: {self.x!r} does not vary; {did_you_mean(self.x, self.varied or ['ranks'])}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def varied(self) -> tuple[str, ...]:
        """Keys that differ between points, those of `points` first."""
        return tuple(dict.fromkeys([*(key for point in self.points for key in point), *self.vary]))

    @property
    def own_factors(self) -> frozenset[str]:
        """Varied names that only formulas know, and no job."""
        return own_factors(self.varied, self.formulas)

    @property
    def named(self) -> bool:
        """True if points are cases with a name each, compared with the first."""
        names = [point.get("name") for point in self.points]
        distinct = len({canonical(name) for name in names}) == len(names)
        return bool(names) and None not in names and distinct and not self.vary

    @property
    def chooses_grids(self) -> bool:
        """True if each point chooses grid and micro-batch."""
        return self.grid == "auto" or (self.grid is None and self.study in CHOSEN_GRIDS)

    @property
    def horizontal(self) -> str:
        """Key along the horizontal axis of pictures."""
        if self.x is None and self.named and self.study == "sweep":
            return "name"
        return self.x or ("ranks" if "ranks" in self.varied else self.varied[0])

    @property
    def series(self) -> tuple[str, ...]:
        """Varied keys that tell the lines of a picture apart.

        In a scaling study what goes with the ranks tells none apart: each would have one point.
        """
        if self.horizontal == "name":
            return ()
        scaling = self.horizontal == "ranks" and self.study in SCALING
        return tuple(
            key for key in self.varied if key != self.horizontal and not (scaling and self._follows_ranks(key))
        )

    def _follows_ranks(self, key: str) -> bool:
        """Tell whether a key goes with the ranks: whole grids do, and of `points` sizes with one value for each number.

        These are names, sizes of axes and micro-batches, and in weak scaling models and batches, on each line for
        itself. Anything else makes another line, such as a machine or an option; so does what `vary` crosses.
        """
        if key == "grid":
            return True
        if key in self.vary or not self._is_size(key):
            return False
        values: dict[str, set[str]] = {}
        for point in self.points:
            place = {other: value for other, value in point.items() if not self._is_size(other)}
            values.setdefault(canonical(place), set()).add(canonical(point.get(key)))
        return all(len(each) == 1 for each in values.values())

    def _is_size(self, key: str) -> bool:
        """Tell whether a key may go with the ranks; in strong scaling the problem is to be the same."""
        if self.study == "strong_scaling" and key in {"batch", "batch.sequences"}:
            return False
        whose = key.partition(".")[0]
        return whose in {"name", "grid", "batch"} or (whose == "model" and self.study == "weak_scaling")


def has_twice(values: Sequence[Any] | Mapping[str, Any]) -> bool:
    """Tell whether a list holds equal values; 1, 1.0 and true are different."""
    listed = list(values.values()) if isinstance(values, Mapping) else list(values)
    return len({canonical(value) for value in listed}) < len(listed)


def canonical(value: Any) -> str:
    """Write a value read from YAML in one way, so that equal ones can be told."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class LoadedStudy:
    """A study file with its base job, read but not resolved."""

    study: Study
    name: str
    base: dict[str, Any]
    """The base job as written, paths made absolute, `set` applied."""
    digest: str
    """Of everything that decides the points: the study, and the files of jobs, machines and models that it names."""

    @property
    def title(self) -> str:
        """Title for people."""
        return self.study.title or self.name


def load_study(path: Path, overrides: Sequence[str] = ()) -> LoadedStudy:
    """Read a study file; `overrides` are `KEY=VALUE` for its base job.

    Raises DescriptionError with every problem of the file; points are checked one by one later.
    """
    raw = read_yaml(path)
    if "model" in raw and "study" not in raw:
        remedy = "this is a job; use `fourfold simulate`, or name it in a study (`job: FILE`)"
        raise DescriptionError([Problem("model", remedy)], str(path))
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, Study), str(path)) from None
    base, files = _base(study, path)
    for key, value in study.overrides.items():
        base = apply(base, key, value, "set")
    for override in overrides:
        base = apply_override(base, override)
    if study.chooses_grids:
        base = apply(apply(base, "grid", "auto", "grid"), "batch.micro_sequences", "auto", "grid")
    varied = [*(v for p in study.points for v in p.items()), *study.vary.items(), *base.items()]
    files |= files_of([value for key, value in varied if key.split(".")[0] in NAME_FILES], path.parent)
    stated = {"study": study.model_dump(mode="json", by_alias=True), "base": base, "files": files}
    digest = hashlib.sha256(canonical(stated).encode()).hexdigest()
    return LoadedStudy(study, path.stem, base, digest)


def apply(raw: Mapping[str, Any], key: str, value: Any, where: str) -> dict[str, Any]:
    """Set one key of a job; problems are told as those of the study's part `where`."""
    from twin.description.load import with_value  # noqa: PLC0415

    try:
        return with_value(raw, key, value)
    except DescriptionError as error:
        raise fail(f"{where}.{key}", "; ".join(p.message for p in error.problems)) from None


def _base(study: Study, path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the base job; return also the digest of its file."""
    if isinstance(study.job, dict):
        return with_absolute_paths({"name": path.stem, **study.job}, path.parent), {}
    file = path.parent / study.job
    raw = read_yaml(file)
    return with_absolute_paths({"name": file.stem, **raw}, file.parent), {"job": _digest(file)}


def files_of(values: Sequence[Any], folder: Path) -> dict[str, str]:
    """Digests of all files that values name: of machines, of those which these extend, and of models (`hf:DIR`)."""
    found: dict[str, str] = {}
    waiting = [(name, folder) for value in values for name in _names_in(value)]
    while waiting:
        name, near = waiting.pop()
        # resolved, so that a study is the same one from whichever directory it is called
        if is_directory_of(name):
            file = (located(name, near) / CONFIG).resolve()
        else:
            file = (near / name if (near / name).is_file() else Path(name)).resolve()
        if str(file) in found or not file.is_file():
            continue
        found[str(file)] = _digest(file)
        if not is_directory_of(name):
            waiting += [(inner, file.parent) for inner in _names_in(read_yaml(file).get("extends"))]
    return found


def _names_in(value: Any) -> list[str]:
    if isinstance(value, str):
        named = is_directory_of(value) or is_path(value)
        return [value] if named and len(value) < 1024 and "\n" not in value else []
    if isinstance(value, Mapping):
        return [name for inner in value.values() for name in _names_in(inner)]
    if isinstance(value, list | tuple):
        return [name for inner in value for name in _names_in(inner)]
    return []


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise fail(str(file), f"cannot be read: {error.strerror}") from None
