"""Read job and machine files, apply overrides, and report everything that is wrong at once.

* `load_job(path, overrides)`: a job file, or a mapping already read.
* `load_machine(name_or_path)`: a name in `topologies/`, or a path.
* `extends: NAME` in a machine file starts from another one; keys given replace keys inherited.
* `a.b.c=value` overrides reach any key of the job and, below `machine.`, of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

import topologies
from twin.description import job as job_module
from twin.description.device import Device
from twin.description.job import Job
from twin.description.library import Library
from twin.description.machine import Machine
from twin.description.model import presets
from twin.description.problems import (
    DescriptionError,
    Problem,
    did_you_mean,
    fail,
    from_pydantic,
    shorten,
)
from twin.description.spec import Spec

MOST_BYTES = 1 << 20
MOST_DEPTH = 40
ROOT = Path(topologies.__file__).parent

S = TypeVar("S", bound=Spec)


class _StrictLoader(yaml.SafeLoader):
    """YAML without surprises: no duplicate keys, no aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(
                None,
                None,
                "anchors and aliases are not used here; write the value out",
                event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice; keep one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, origin: str) -> dict[str, Any]:
    """Parse YAML text whose top level must be a mapping with text keys."""
    try:
        data = yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DescriptionError([Problem(where, f"not valid YAML: {what}")], origin) from None
    except RecursionError:
        raise DescriptionError([Problem("", "nested too deeply")], origin) from None
    except ValueError as error:  # dates and numbers that YAML recognises but Python cannot hold
        raise DescriptionError([Problem("", f"not valid YAML: {error}")], origin) from None
    if data is None:
        raise DescriptionError([Problem("", "the file is empty")], origin)
    if not isinstance(data, dict):
        raise DescriptionError(
            [Problem("", f"expected a mapping of keys, found {shorten(data)}")], origin
        )
    if _depth(data) > MOST_DEPTH:
        raise DescriptionError([Problem("", "nested too deeply")], origin)
    if odd := [k for k in data if not isinstance(k, str)]:
        raise DescriptionError([Problem(str(k), "keys must be text") for k in odd], origin)
    return data


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML file of moderate size."""
    try:
        if not path.is_file():
            raise fail(str(path), "no such file" if not path.exists() else "not a file")
        if path.stat().st_size > MOST_BYTES:
            raise fail(str(path), f"larger than {MOST_BYTES >> 20} MiB; not a description file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise fail(str(path), "not text in UTF-8") from None
    except OSError as error:
        raise fail(str(path), f"cannot be read: {error.strerror}") from None
    return parse_yaml(text, str(path))


def names(folder: str = "") -> list[str]:
    """Names of the machines (or `devices`, `libraries`) that come with Fourfold."""
    return sorted(p.stem for p in (ROOT / folder).glob("*.yaml"))


def load_machine(name: str | Path) -> Machine:
    """Read a machine by name, or from a path (which contains `/` or ends in `.yaml`)."""
    raw = _machine_mapping(str(name), "machine", ())
    return _validate(Machine, raw, str(name))


def load_device(name: str) -> Device:
    """Read a device of `topologies/devices` by name."""
    return _validate(Device, _packaged(name, "devices", "device"), name)


def load_library(name: str) -> Library:
    """Read a collective library of `topologies/libraries` by name."""
    return _validate(Library, _packaged(name, "libraries", "library"), name)


def load_job(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Job:
    """Read a job from a file or mapping, apply `a.b=c` overrides, and check all rules.

    Raises DescriptionError with every problem found.
    """
    if isinstance(source, Path):
        raw, origin = read_yaml(source), str(source)
    else:
        raw, origin = dict(source), "job"
    for override in overrides:
        raw = apply_override(raw, override)
    try:
        raw = _resolve_names(raw, Path(origin).parent)
    except DescriptionError as error:
        raise DescriptionError([*error.problems, *_other_problems(raw)], origin) from None
    job = _validate(Job, raw, origin)
    if problems := job_module.check(job):
        raise DescriptionError(problems, origin)
    return job


def _other_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Problems of the rest of the job when its model or machine cannot be found."""
    try:
        Job.model_validate(raw)
    except ValidationError as error:
        found = from_pydantic(error, Job)
        return [p for p in found if not p.path.startswith(("machine", "model"))]
    return []


def _validate(model: type[S], raw: Mapping[str, Any], origin: str) -> S:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, model), origin) from None


def _resolve_names(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    resolved = dict(raw)
    problems: list[Problem] = []
    if isinstance(raw.get("model"), str):
        known = presets()
        if raw["model"] in known:
            resolved["model"] = known[raw["model"]]
        else:
            problems.append(Problem("model", did_you_mean(raw["model"], known), raw["model"]))
    elif isinstance(raw.get("model"), dict) and "preset" in raw["model"]:
        resolved["model"], found = _preset(raw["model"])
        problems += found
    machine = raw.get("machine")
    try:
        if isinstance(machine, str):
            resolved["machine"] = _machine_mapping(machine, "machine", (), folder)
        elif isinstance(machine, dict):
            resolved["machine"] = _extend(machine, "machine", (), folder)
    except DescriptionError as error:
        problems += error.problems
    if problems:
        raise DescriptionError(problems)
    return resolved


def _preset(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    known, name = presets(), raw["preset"]
    if not isinstance(name, str) or name not in known:
        return dict(raw), [Problem("model.preset", did_you_mean(str(name), known), name)]
    changed = {k: v for k, v in raw.items() if k != "preset"}
    return {**known[name].model_dump(by_alias=True), **changed}, []


def _packaged(name: str, folder: str, path: str) -> dict[str, Any]:
    if name not in names(folder):
        raise fail(path, did_you_mean(name, names(folder)), name)
    return read_yaml(ROOT / folder / f"{name}.yaml")


def _machine_mapping(
    name: str, path: str, seen: tuple[str, ...], folder: Path = Path()
) -> dict[str, Any]:
    if name in seen:
        raise fail(path, f"extends itself: {' → '.join([*seen, name])}")
    if "/" in name or name.endswith((".yaml", ".yml")):
        candidate = Path(name) if Path(name).is_absolute() else folder / name
        file = candidate if candidate.exists() else Path(name)
        return _extend(read_yaml(file), path, (*seen, name), file.parent)
    return _extend(_packaged(name, "", path), path, (*seen, name), folder)


def _extend(
    raw: Mapping[str, Any], path: str, seen: tuple[str, ...], folder: Path
) -> dict[str, Any]:
    """Resolve `extends`, and device and library names, inside a machine mapping."""
    data = dict(raw)
    base = data.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise fail(f"{path}.extends", "expected the name of a machine", base)
        data = _merge(_machine_mapping(base, path, seen, folder), data)
    data["device"] = _named_part(data.get("device"), "devices", f"{path}.device")
    libraries = data.get("libraries")
    if isinstance(libraries, dict):
        data["libraries"] = {
            key: _named_part(value, "libraries", f"{path}.libraries.{key}")
            for key, value in libraries.items()
        }
    if data["device"] is None:
        del data["device"]
    return data


def _named_part(value: Any, folder: str, path: str) -> Any:
    if isinstance(value, str):
        return _packaged(value, folder, path)
    if isinstance(value, dict) and isinstance(value.get("extends"), str):
        changed = {k: v for k, v in value.items() if k != "extends"}
        return _merge(_packaged(value["extends"], folder, path), changed)
    return value


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings deeply; a bare value put in place of a parameter keeps no old source."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merge(old, value)
        elif (
            isinstance(old, dict)
            and {"value", "kind", "source"} <= set(old)
            and not isinstance(value, dict)
        ):
            merged[key] = {"value": value, "kind": "assumed", "source": "set by the user"}
        elif isinstance(old, str) and isinstance(value, dict):
            merged[key] = {"extends": old, **value}  # a named device or library with changes
        else:
            merged[key] = value
    return merged


def apply_override(raw: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Apply one `a.b.c=value`; the value is read as YAML.

    >>> apply_override({"grid": {"z": 2}}, "grid.z=4")
    {'grid': {'z': 4}}
    >>> apply_override({"machine": "frontier"}, "machine.nic.bandwidth=50 GB/s")
    {'machine': {'extends': 'frontier', 'nic': {'bandwidth': '50 GB/s'}}}
    """
    path, equals, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise fail("--set", "expected KEY.KEY=VALUE", override)
    try:
        value = yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise fail("--set", "the value is not valid YAML", override) from None
    return _set(raw, keys, value)


_EXTENDS = {"machine": "extends", "model": "preset"}


def _set(raw: Any, keys: Sequence[str], value: Any) -> dict[str, Any]:
    data = dict(raw) if isinstance(raw, Mapping) else {}
    key = keys[0]
    if len(keys) == 1:
        data[key] = value
        return data
    child = data.get(key)
    if isinstance(child, str) and key in _EXTENDS:
        child = {_EXTENDS[key]: child}
    elif child is not None and not isinstance(child, Mapping) and child != "auto":
        raise fail("--set", f"{key} is {shorten(child)} and has no keys below it", ".".join(keys))
    data[key] = _set(child, keys[1:], value)
    return data
