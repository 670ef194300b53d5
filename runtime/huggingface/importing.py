"""`fourfold import`: a Hugging Face directory becomes a full model in our names, with a job that trains on from it.

The directory appears whole or not at all. Memory holds a few rows at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import yaml

from runtime.checkpoint.directory import appearing
from runtime.checkpoint.full_model import SINGLE
from runtime.checkpoint.pieces import MAX_CHUNK
from runtime.checkpoint.tensor_file import UnusableFileError, write_pieces
from runtime.huggingface.companions import copy_companions
from runtime.huggingface.source import Source, split
from runtime.records.run_directory import COMPANIONS, IMPORTED
from twin.description.huggingface import PREFIX
from twin.description.load import apply_override
from twin.description.problems import fail
from twin.strategies import load_job


@dataclass(frozen=True)
class Imported:
    """What was written."""

    directory: Path
    family: str
    parameters: int
    bytes: int
    companions: list[str]


def import_huggingface(path: Path, out: Path, overrides: Sequence[str] = ()) -> Imported:
    """Write the model of a directory, or of one safetensors file in it, into a new directory.

    In it: `model.safetensors` (our names, dtypes as they come), `job.yaml` that starts from it, and the files that go
    with the weights. `overrides` change keys of the job. Raises DescriptionError with everything that is wrong.
    """
    folder, _ = split(path)
    described = _job(out, overrides)
    model = load_job({**described, "model": _model_at(described["model"], folder)}).model
    try:
        with Source(path, model) as source, appearing(out) as temporary:
            shapes = source.layout.ours
            header = {name: (source.dtype(name), shape) for name, shape in shapes.items()}
            metadata = {"format": "pt", "model": json.dumps(model.model_dump(mode="json"))}
            pieces = (_pieces(source, name, shape) for name, shape in shapes.items())
            write_pieces(temporary / SINGLE, header, pieces, metadata)
            companions = copy_companions(folder, temporary / COMPANIONS)
            _write_job(temporary / IMPORTED, described, folder)
    except UnusableFileError as error:
        raise fail(str(error.path), error.reason) from None
    return Imported(out, source.family, model.parameters, (out / SINGLE).stat().st_size, companions)


def _pieces(source: Source, name: str, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Read a parameter some rows at a time."""
    step = max(1, MAX_CHUNK // prod(shape[1:]))
    for row in range(0, shape[0], step):
        count = min(step, shape[0] - row)
        yield source.read(name, (row, *(0 for _ in shape[1:])), (count, *shape[1:]))


def _job(out: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a job that starts from the model."""
    raw: dict[str, Any] = {
        "name": out.name,
        "model": f"{PREFIX}{COMPANIONS}",
        "machine": "laptop",
        "ranks": 1,
        "grid": "auto",
        "batch": {"sequences": 8, "micro_sequences": "auto"},
        "train": {"initial_weights": SINGLE},
    }
    for override in overrides:
        raw = apply_override(raw, override)
    return raw


def _model_at(model: Any, folder: Path) -> Any:
    """Let the model of the job be read from where its files lie now."""
    here, there = f"{PREFIX}{COMPANIONS}", f"{PREFIX}{folder.resolve()}"
    if isinstance(model, Mapping) and model.get("preset") == here:
        return {**model, "preset": there}
    if model != here:
        raise fail("--set", f"the model is that of {folder}; set keys of it, such as model.sequence=1024", "model")
    return there


def _write_job(path: Path, described: Mapping[str, Any], folder: Path) -> None:
    name = "".join(c if c.isprintable() else "�" for c in folder.resolve().name)
    body = yaml.safe_dump(dict(described), sort_keys=False, allow_unicode=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(f"# The model of {name}, to be trained on: set machine, ranks, batch and train.data.\n{body}")
        file.flush()
        os.fsync(file.fileno())
