"""The job as a form: one field for each plain key of the published schema of its strategy's jobs, and a few levers.

What a field says comes as text from an address and is checked twice: here for its form, and by
the twin as it checks every job. Machines and models can only be named, so that no path of a
visitor's is ever opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Literal

from twin.description.inherit import inheriting
from twin.description.job import DEFAULT_STRATEGY, Job
from twin.description.load import names as machine_names
from twin.description.load import with_value
from twin.description.machine import Machine
from twin.description.presets import presets
from twin.description.problems import DescriptionError, Problem, fail
from twin.strategies import load_job, named, names, strategy_of
from twin.strategies.schema import job_schema

Kind = Literal["number", "choice", "text", "lever"]
FIRST = ("what", "levers", "grid", "batch", "straggler")
"""Groups that are open from the beginning; behind them stand one for each mapping of the job, and all else."""
LEFT_OUT = {
    "name",
    "strategy",
    "model",
    "machine",
    "grid",
    "stragglers",
    "placement",
    "degraded",
    "energy",
    "offload",
    "seed",
    "train",
    "library",
    "lora",
    "stage_layers",
}
"""Keys that have a field of their own kind, or none."""
MAX_TEXT = 40
"""Letters of a field: more than any number, unit or name in it has."""
MAX_OCTAVES = 6.0
"""The widest lever, of ranks, goes from 1/64 to 64 times."""
MODIFIED = " (modified)"
"""Behind the name of a machine that is not as it was described."""
LEVERS = {
    "scale-nic": ("NIC rate", "machine.nic.bandwidth", "Rate of every NIC, times ⅛ to 8."),
    "scale-latency": ("network latency", "machine.nic.latency", "Latency of every NIC, times ⅛ to 8."),
    "scale-peak": ("device peak", "machine.device.peak", "Peak of every device, times ⅛ to 8."),
}
"""Sliders: label, the parameter that is multiplied, and what it means."""


@dataclass(frozen=True)
class Field:
    """One control."""

    key: str
    """As an address has it: the job's key with dashes for dots; `scale-…` multiplies a parameter."""
    label: str
    kind: Kind
    group: str
    help: str = ""
    choices: tuple[str, ...] = ()
    whole: bool = True
    least: float | None = None
    most: float | None = None

    @property
    def path(self) -> str:
        """Key of the job, to be said."""
        return self.key.replace("-", ".")

    @property
    def called(self) -> str:
        """What is said to be wrong: a lever is no key of the job, and has its name."""
        return self.label if self.kind == "lever" else self.path


@lru_cache
def fields_of(strategy: str) -> tuple[Field, ...]:
    """All fields of a strategy's jobs, in the order of the schema."""
    schema = job_schema(strategy)
    found = [
        Field("model", "model", "choice", "what", "A preset.", tuple(presets())),
        Field("machine", "machine", "choice", "what", "One that comes with Fourfold.", tuple(machine_names())),
        Field("library", "library", "text", "what", _help(schema["properties"]["library"])),
        Field("scale-ranks", "ranks, times", "lever", "levers", "Ranks, times a whole power of 2, 1/64 to 64."),
        *(Field(key, label, "lever", "levers", words, whole=False) for key, (label, _, words) in LEVERS.items()),
        *(
            Field(f"grid-{axis}", axis, "choice", "grid", "A divisor that the model and the batch allow.")
            for axis in named(strategy).axes
        ),
        Field(
            "lora-rank", "rank of adapters", "number", "options", "Train low-rank adapters of this rank alone.", least=1
        ),
        Field("stragglers-0-rank", "slow rank", "number", "straggler", "Which device is slow.", least=0),
        Field(
            "stragglers-0-slowdown",
            "times slower",
            "number",
            "straggler",
            "How many times longer it computes.",
            whole=False,
            least=1,
            most=1000,
        ),
    ]
    for key, said in schema["properties"].items():
        if key in LEFT_OUT:
            continue
        if "$ref" in said:
            inside = schema["$defs"][said["$ref"].rpartition("/")[2]]["properties"]
            found += [f for name, one in inside.items() if (f := _field(f"{key}-{name}", one, key))]
        elif field := _field(key, said, "batch" if key == "ranks" else "options"):
            found.append(field)
    groups = [*FIRST, *dict.fromkeys(f.group for f in found if f.group not in (*FIRST, "options")), "options"]
    return tuple(sorted(found, key=lambda f: groups.index(f.group)))


def _field(key: str, said: Mapping[str, Any], group: str) -> Field | None:
    """Make the field of one plain property of the schema; None for what is not plain."""
    label = key.rpartition("-")[2].replace("_", " ")
    options = [said, *said.get("anyOf", [])]
    if words := next((o["enum"] for o in options if "enum" in o), None):
        return Field(key, label, "choice", group, _help(said), tuple(map(str, words)))
    if any(o.get("type") == "boolean" for o in options):
        return Field(key, label, "choice", group, _help(said), ("on", "off"))
    number = next((o for o in options if {"integer", "number"} & set(_types(o))), None)
    if number is None:
        return None
    if any(o.get("const") == "auto" for o in options):
        return Field(key, label, "text", group, _help(said))
    return Field(
        key,
        label,
        "number",
        group,
        _help(said),
        whole="integer" in _types(number),
        least=number.get("minimum", 1 if "exclusiveMinimum" in number and "integer" in _types(number) else 0),
        most=number.get("maximum"),
    )


def _types(said: Mapping[str, Any]) -> list[str]:
    found = said.get("type", [])
    return [found] if isinstance(found, str) else list(found)


def _help(said: Mapping[str, Any]) -> str:
    return " ".join(str(said.get("description", "")).split())


FIELDS = fields_of(DEFAULT_STRATEGY)
KEYS = tuple(dict.fromkeys(f.key for name in (DEFAULT_STRATEGY, *names()) for f in fields_of(name)))
"""Of the fields of all strategies: a page has a control for each, of which those of its job's strategy are seen."""
LEVER_KEYS = tuple(field.key for field in FIELDS if field.kind == "lever")
WHOLE_LEVERS = {field.key for field in FIELDS if field.kind == "lever" and field.whole}
"""Levers of whole powers of 2: half a rank is none."""


def parsed(field: Field, text: str) -> Any:
    """Read what a field says. Raises DescriptionError."""
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise fail(field.called, f"is longer than {MAX_TEXT} characters", text)
    if field.kind == "choice" and field.choices:
        if text not in field.choices:
            raise fail(field.called, f"choose from {', '.join(field.choices)}", text)
        return text == "on" if field.choices == ("on", "off") else text
    if field.kind == "text" and not text.replace("-", "").replace("_", "").isalnum():
        raise fail(field.called, "expected a name or a whole number", text)
    if field.kind == "text" and not text.isdecimal():
        return text
    try:
        value = float(text)
    except ValueError:
        raise fail(field.called, "expected a number", text) from None
    if field.kind == "lever":
        return _octaves(field, value)
    if not math.isfinite(value):
        raise fail(field.called, "expected a finite number", text)
    whole = field.whole or field.kind == "text"
    if whole and value != int(value):
        raise fail(field.called, "expected a whole number", text)
    return int(value) if whole else value


def _octaves(field: Field, value: float) -> float:
    """Return the power of 2 that a lever multiplies by. Raises DescriptionError."""
    if not abs(value) <= MAX_OCTAVES:
        raise fail(field.called, f"expected 1/{2**MAX_OCTAVES:g} to {2**MAX_OCTAVES:g} times")
    if field.whole and value != int(value):
        raise fail(field.called, "expected a whole power of 2, such as ½, 2 or 4", f"{2**value:.4g}")
    return value


def changed(base: Job, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the base job with what an address says of it, as a mapping.

    Grid axes that the address leaves open stay, but `data` becomes what the ranks need. Keys of other strategies
    than the job's are passed over. Raises DescriptionError with every problem of form.
    """
    given: dict[str, Any] = {}
    problems: list[Problem] = []
    for field in fields_of(base.strategy):
        if not query.get(field.key):
            continue
        try:
            given[field.key] = parsed(field, query[field.key])
        except DescriptionError as error:
            problems += error.problems
    if problems:
        raise DescriptionError(problems)
    raw: dict[str, Any] = base.model_dump(mode="json", by_alias=True)
    if "machine" in given:
        raw["machine"] = given["machine"]
        raw["library"] = None
    if "machine" in given or "model" in given:  # names become what they stand for, to be scaled
        raw |= {key: given[key] for key in ("machine", "model") if key in given}
        alone = {key: raw[key] for key in ("model", "machine", "precision")}
        spelled = load_job({**alone, "ranks": 1, "grid": "auto", "batch": {"sequences": 1}})
        raw |= {key: spelled.model_dump(mode="json", by_alias=True)[key] for key in ("machine", "model")}
    _set_ranks_and_grid(raw, base, given)
    if len(raw["stragglers"]) == 0 and any(key.startswith("stragglers") for key in given):
        if "stragglers-0-rank" not in given:
            remedy = "no device is said to be slow; choose a slow rank, or empty times slower too"
            raise fail("stragglers.0.rank", remedy)
        raw["stragglers"] = [{"rank": given["stragglers-0-rank"], "slowdown": 1.0}]
    if any(given.get(key) for key in LEVERS):
        _rename(raw)
    for key, value in given.items():
        if key in LEVERS and value:
            _scale(raw, LEVERS[key][1], 2.0**value)
        elif not key.startswith(("scale-", "grid-")) and key not in ("model", "machine", "ranks"):
            raw = with_value(raw, key.replace("-", "."), value)
    return raw


def _set_ranks_and_grid(raw: dict[str, Any], base: Job, given: Mapping[str, Any]) -> None:
    ranks = given.get("ranks", base.ranks)
    scaled = ranks * 2.0 ** given.get("scale-ranks", 0)
    if scaled < 1 or scaled != int(scaled):
        raise fail("ranks", f"{ranks:,} ranks cannot be divided so often; choose a larger factor", scaled)
    sizes = {axis: given.get(f"grid-{axis}", size) for axis, size in base.concrete_grid.by_axis().items()}
    free = "data" if "data" in sizes else next(iter(sizes))  # copies of the model, where a strategy has any
    inside = prod(size for axis, size in sizes.items() if axis != free)
    if f"grid-{free}" not in given and inside > 0 and int(scaled) % inside == 0:
        sizes[free] = int(scaled) // inside
    raw["ranks"], raw["grid"] = int(scaled), sizes


def _rename(raw: dict[str, Any]) -> None:
    """Call a machine that is changed as `--set` calls it: figures of it are not those of the one it was."""
    name = raw["machine"]["name"]
    if not name.endswith(MODIFIED):
        raw["machine"] = inheriting(raw["machine"], {"name": f"{name}{MODIFIED}"}, name, Machine)


def _scale(raw: dict[str, Any], path: str, factor: float) -> None:
    """Multiply one parameter of the machine."""
    *above, last = path.split(".")
    node: Any = raw
    for key in above:
        node = node[key]
    value = node[last]
    number = value["value"] if isinstance(value, dict) else value
    node[last] = {"value": number * factor, "kind": "assumed", "source": "what-if"}


def grid_choices(job: Job) -> dict[str, tuple[str, ...]]:
    """Return the sizes of each axis that the rules of model, batch and ranks allow by themselves."""
    choices = strategy_of(job).axis_choices(job)
    return {axis: tuple(map(str, sizes)) for axis, sizes in choices.items()}


def said(base: Job, key: str) -> str:
    """Return what the base job has at a field's key, as the form shows it; empty if nothing."""
    node: Any = base.model_dump(mode="json", by_alias=True)
    if key in ("model", "machine"):
        return str(node[key]["name"])
    if key == "library":
        return str(base.library or base.machine.library)
    for part in key.split("-"):
        if isinstance(node, list):
            node = node[int(part)] if int(part) < len(node) else None
        else:
            node = node.get(part) if isinstance(node, dict) else None
    if node is None or isinstance(node, bool):
        return {None: "", True: "on", False: "off"}[node]
    return f"{node:.12g}" if isinstance(node, float) else str(node)
