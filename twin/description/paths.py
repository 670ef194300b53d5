"""Paths in a job file, which start from its folder: of machines, models, and what is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twin.description.huggingface import absolute, is_directory_of

TRAIN_PATHS = ("data", "initial_weights", "initial_adapters")
"""Keys of `train:` that hold paths."""


def is_path(name: str) -> bool:
    """Tell a path from the name of a machine that comes with Fourfold."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def exists(path: Path) -> bool:
    """Tell whether there is such a file or folder; none has a name that is too long for the file system."""
    try:
        return path.exists()
    except OSError:
        return False


def with_absolute_paths(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a job as written with paths that lead there from anywhere; what has a wrong shape stays as it is."""
    raw, folder = dict(raw), folder.resolve()
    machine, train, model = raw.get("machine"), raw.get("train"), raw.get("model")
    if is_directory_of(model):
        raw["model"] = absolute(str(model), folder)
    elif isinstance(model, dict) and is_directory_of(model.get("preset")):
        raw["model"] = {**model, "preset": absolute(model["preset"], folder)}
    if isinstance(machine, str):
        raw["machine"] = _machine_path(machine, folder)
    elif isinstance(machine, dict) and isinstance(machine.get("extends"), str):
        raw["machine"] = {**machine, "extends": _machine_path(machine["extends"], folder)}
    if isinstance(train, dict):
        raw["train"] = _train(train, folder)
    return raw


def _train(train: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    moved = {k: _train_path(v, folder) if isinstance(v, str) and v else v for k, v in train.items() if k in TRAIN_PATHS}
    if isinstance(parts := train.get("data"), list):
        moved["data"] = [
            {**part, "path": _train_path(part["path"], folder)}
            if isinstance(part, dict) and isinstance(part.get("path"), str)
            else part
            for part in parts
        ]
    evaluation = train.get("evaluation")
    if isinstance(evaluation, dict) and isinstance(sets := evaluation.get("sets"), dict):
        found = {name: _train_path(path, folder) if isinstance(path, str) else path for name, path in sets.items()}
        moved["evaluation"] = {**evaluation, "sets": found}
    return {**train, **moved}


def _machine_path(name: str, folder: Path) -> str:
    if not is_path(name):
        return name
    there = folder / name
    return str((there if exists(there) else Path(name)).resolve())


def _train_path(name: str, folder: Path) -> str:
    """A word without a slash that is no file there is a name that the runtime knows."""
    if is_directory_of(name):
        return absolute(name, folder)
    there = folder / name
    return str(there) if "/" in name or exists(there) else name
