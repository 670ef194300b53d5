"""Read machine files and the parts of job files, apply overrides, and report everything that is wrong at once.

* `twin.strategies.load_job(path, overrides)` reads job files with what is here.
* `load_machine(name_or_path)`: a name in `topologies/`, or a path.
* `extends: NAME` in a machine file starts from another one; keys given replace keys inherited.
* `a.b.c=value` overrides reach any key of the job and, below `machine.`, of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

import topologies
from twin.description.device import Device
from twin.description.huggingface import PREFIX, is_directory_of, located, read_model
from twin.description.inherit import inheriting
from twin.description.library import Library
from twin.description.machine import Machine
from twin.description.model import Model
from twin.description.paths import exists, is_path
from twin.description.presets import presets
from twin.description.problems import DescriptionError, Problem, did_you_mean, fail, from_pydantic, shorten
from twin.description.spec import Spec
from twin.description.strict_yaml import MAX_DEPTH, parse_value, read_packaged_yaml, read_yaml

ROOT = Path(topologies.__file__).parent

S = TypeVar("S", bound=Spec)


def names(folder: str = "") -> list[str]:
    """Names of the machines (or `devices`, `libraries`) that come with Fourfold."""
    return sorted(p.stem for p in (ROOT / folder).glob("*.yaml"))


def load_machine(name: str | Path) -> Machine:
    """Read a machine by name, or from a path (which contains `/` or ends in `.yaml`)."""
    if not is_path(str(name)):
        return _packaged_machine(str(name))
    return validate(Machine, _machine_mapping(str(name), "machine", ()), str(name))


@lru_cache(maxsize=64)
def _packaged_machine(name: str) -> Machine:
    """Read a machine that comes with Fourfold, once: it is frozen, so all jobs that name it share it."""
    return validate(Machine, _machine_mapping(name, "machine", ()), name)


@lru_cache(maxsize=64)
def load_device(name: str) -> Device:
    """Read a device of `topologies/devices` by name."""
    return validate(Device, _packaged(name, "devices", "device"), name)


@lru_cache(maxsize=64)
def load_library(name: str) -> Library:
    """Read a collective library of `topologies/libraries` by name."""
    return validate(Library, _packaged(name, "libraries", "library"), name)


def validate(model: type[S], raw: Mapping[str, Any], origin: str) -> S:
    """Check what was read; raises DescriptionError with every problem, its path and a hint."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, model), origin) from None


def resolve_names(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Put in the model and the machine that a job names; paths count from `folder`."""
    resolved = dict(raw)
    problems: list[Problem] = []
    try:
        if "model" in raw:
            resolved["model"] = _model(raw["model"], folder)
    except DescriptionError as error:
        problems += _told_with_file(error)
    machine = raw.get("machine")
    try:
        if isinstance(machine, str) and not is_path(machine):
            resolved["machine"] = _packaged_machine(machine)
        elif isinstance(machine, str):
            resolved["machine"] = _machine_mapping(machine, "machine", (), folder)
        elif isinstance(machine, dict):
            resolved["machine"] = _extend(machine, "machine", (), folder)
    except DescriptionError as error:
        problems += _told_with_file(error)
    if problems:
        raise DescriptionError(problems)
    return resolved


def _told_with_file(error: DescriptionError) -> list[Problem]:
    """Name the file that problems are in, if it is not the job's own."""
    where = f"{error.origin}: " if error.origin else ""
    return [Problem(f"{where}{p.path}".rstrip(": "), p.message, p.value) for p in error.problems]


def _model(raw: Any, folder: Path) -> Any:
    """Put in the model that is named, with the keys given beside its name."""
    if isinstance(raw, str):
        return _named_model(raw, "model", None, folder)
    if not isinstance(raw, dict) or "preset" not in raw:
        return raw
    changed = {k: v for k, v in raw.items() if k != "preset"}
    sequence = changed.get("sequence")
    named = _named_model(raw["preset"], "model.preset", sequence if type(sequence) is int else None, folder)
    return {**named.model_dump(by_alias=True), **changed}


def _named_model(name: Any, path: str, sequence: int | None, folder: Path) -> Model:
    if is_directory_of(name):
        return read_model(located(name, folder), sequence)
    known = presets()
    if not isinstance(name, str) or name not in known:
        raise fail(path, did_you_mean(str(name), [*known, f"{PREFIX}DIR"]), name)
    return known[name]


def _packaged(name: str, folder: str, path: str) -> dict[str, Any]:
    if name not in names(folder):
        raise fail(path, did_you_mean(name, names(folder)), name)
    return _read_packaged(ROOT / folder / f"{name}.yaml")


@lru_cache(maxsize=64)
def _read_packaged(path: Path) -> dict[str, Any]:
    """Read a file that comes with Fourfold; a study of thousands of jobs reads it once, and none of them changes it."""
    return read_packaged_yaml(path)


def _machine_mapping(name: str, path: str, seen: tuple[str, ...], folder: Path = Path()) -> dict[str, Any]:
    if name in seen:
        raise fail(path, f"extends itself: {' → '.join([*seen, name])}")
    if is_path(name):
        candidate = Path(name) if Path(name).is_absolute() else folder / name
        file = candidate if exists(candidate) else Path(name)
        return _extend(read_yaml(file), path, (*seen, name), file.parent)
    return _extend(_packaged(name, "", path), path, (*seen, name), folder)


def _extend(raw: Mapping[str, Any], path: str, seen: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Resolve `extends`, and device and library names, inside a machine mapping."""
    data = dict(raw)
    base = data.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise fail(f"{path}.extends", "expected the name of a machine", base)
        inherited = _machine_mapping(base, path, seen, folder)
        if data and "name" not in data:
            data["name"] = f"{inherited.get('name', base)} (modified)"
        data = inheriting(inherited, data, base, Machine)
    data["device"] = _named_part(data.get("device"), "devices", f"{path}.device")
    libraries = data.get("libraries")
    if isinstance(libraries, dict):
        data["libraries"] = {
            key: _named_part(value, "libraries", f"{path}.libraries.{key}") for key, value in libraries.items()
        }
    if data["device"] is None:
        del data["device"]
    return data


def _named_part(value: Any, folder: str, path: str) -> Any:
    if isinstance(value, str):
        return _packaged(value, folder, path)
    if isinstance(value, dict) and isinstance(value.get("extends"), str):
        changed = {k: v for k, v in value.items() if k != "extends"}
        model = Device if folder == "devices" else Library
        return inheriting(_packaged(value["extends"], folder, path), changed, value["extends"], model)
    return value


def apply_override(raw: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Apply one `a.b.c=value`; the value is read as YAML.

    >>> apply_override({"grid": {"z": 2}}, "grid.z=4")
    {'grid': {'z': 4}}
    >>> apply_override({"machine": "frontier"}, "machine.nic.bandwidth=50 GB/s")
    {'machine': {'extends': 'frontier', 'nic': {'bandwidth': '50 GB/s'}}}
    """
    path, equals, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys) or len(keys) > MAX_DEPTH:
        raise fail("--set", "expected KEY.KEY=VALUE", override)
    value = parse_value(text, override)
    return _set(raw, keys, value)


def with_value(raw: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the mapping of a job or study with the key at a dotted path set; lists count from 0.

    >>> with_value({"stragglers": [{"rank": 3}]}, "stragglers.0.slowdown", 1.2)
    {'stragglers': [{'rank': 3, 'slowdown': 1.2}]}
    """
    keys = path.split(".")
    if not all(keys) or len(keys) > MAX_DEPTH:
        raise fail(path, "expected KEY or KEY.KEY")
    return _set(raw, keys, value)


_EXTENDS = {"machine": "extends", "model": "preset"}


def _set(raw: Any, keys: Sequence[str], value: Any) -> dict[str, Any]:
    data = dict(raw) if isinstance(raw, Mapping) else {}
    key = keys[0]
    if len(keys) == 1:
        data[key] = value
        return data
    child = data.get(key)
    if isinstance(child, list) and keys[1].isdigit() and int(keys[1]) < len(child):
        at = int(keys[1])
        entry = value if len(keys) == 2 else _set(child[at], keys[2:], value)
        data[key] = [*child[:at], entry, *child[at + 1 :]]
        return data
    if isinstance(child, str) and key in _EXTENDS:
        child = {_EXTENDS[key]: child}
    elif child is not None and not isinstance(child, Mapping) and child != "auto":
        raise fail("--set", f"{key} is {shorten(child)} and has no keys below it", ".".join(keys))
    data[key] = _set(child, keys[1:], value)
    return data
