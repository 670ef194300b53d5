"""`fourfold export --hf`: a checkpoint or a full model becomes a directory that Hugging Face transformers reads.

`config.json` in the keys of both generations, safetensors in files of limited size with an index, and the tokenizer
that the run came with. The directory appears whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from runtime.checkpoint.directory import appearing
from runtime.checkpoint.fit import differences, refuse
from runtime.checkpoint.full_model import SINGLE, Weights
from runtime.checkpoint.pieces import MAX_CHUNK
from runtime.checkpoint.tensor_file import DTYPES, UnusableFileError, write_pieces
from runtime.huggingface.bands import Bands
from runtime.huggingface.companions import OTHERS, copy_companions, find_companions
from runtime.huggingface.families import HEAD, TOKENS, Layout, layout
from runtime.huggingface.merging import open_merged
from runtime.huggingface.source import INDEX
from twin.description.huggingface import CONFIG, read_config
from twin.description.huggingface_config import config_of
from twin.description.model import Model
from twin.description.problems import DescriptionError, did_you_mean, fail, from_pydantic

SHARD_BYTES = 5_000_000_000
SHORT = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


@dataclass(frozen=True)
class Given:
    """What was written."""

    directory: Path
    source: Path
    family: str
    parameters: int
    bytes: int
    files: int
    companions: list[str]


def export_huggingface(
    run: Path, out: Path, *, dtype: str | None = None, family: str | None = None, shard_bytes: int = SHARD_BYTES
) -> Given:
    """Write the weights of a run, a checkpoint or a full model's file into a new directory.

    `dtype`: bf16, fp16 or fp32, as it is stored if None; `shard_bytes`: of tensors in a file at most, if one is not
    larger. Raises DescriptionError if the model is of no family there, or what is read is damaged.
    """
    wanted = None if dtype is None else _dtype(dtype)
    try:
        with open_merged(run, rounded=False) as weights:
            model = _model(weights)
            beside = find_companions(weights.path)
            stored = weights.entries.get(HEAD, ("F32", ()))[0]
            base = None if beside is None else read_config(beside)
            config = config_of(model, wanted or stored, family, base)
            arranged = layout(model, config["model_type"])
            found = {name: (shape, each) for name, (each, shape) in weights.entries.items()}
            refuse(differences(found, arranged.ours, set(DTYPES)), weights.path, "give weights of the model they name")
            with appearing(out) as temporary:
                writer = _Writer(weights, arranged, model, wanted)
                files, total = writer.write(temporary, shard_bytes)
                write_json(temporary / CONFIG, config)
                companions = [] if beside is None else copy_companions(beside, temporary, OTHERS)
            return Given(out, weights.path, config["model_type"], model.parameters, total, files, companions)
    except UnusableFileError as error:
        raise fail(str(error.path), error.reason) from None


def _dtype(word: str) -> str:
    if word not in SHORT:
        raise fail("--dtype", did_you_mean(word, SHORT), word)
    return SHORT[word]


def _model(weights: Weights) -> Model:
    """Read what is said beside weights about their model; raises DescriptionError if that is no model."""
    if not weights.model:
        raise fail(str(weights.path), "does not say what model it is; give a run, or a file of `fourfold export`")
    try:
        return Model.model_validate(dict(weights.model))
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, Model, "model"), str(weights.path)) from None


class _Writer:
    """Writes the tensors of a model into files of limited size."""

    def __init__(self, weights: Weights, arranged: Layout, model: Model, dtype: str | None) -> None:
        self.weights, self.theirs, self.dtype = weights, arranged.theirs, dtype
        # of two tied matrices the head is the one that is trained; the table may be its rounded copy
        dropped = TOKENS if model.tied_embeddings else None
        bands = [band for band in arranged.bands if band.ours != dropped]
        self.bands = Bands(band.turned for band in bands)
        self._of = {band.theirs: band.ours for band in bands}

    def write(self, folder: Path, shard_bytes: int) -> tuple[int, int]:
        """Write all files, and an index if there are several; return their number and the bytes of tensors."""
        shards = self._shards(shard_bytes)
        names = [SINGLE]
        if len(shards) > 1:
            names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        for name, keys in zip(names, shards, strict=True):
            header = {key: (self._dtype(key), self.theirs[key]) for key in keys}
            write_pieces(folder / name, header, (self._pieces(key) for key in keys), {"format": "pt"})
        total = sum(map(self._bytes, self.theirs))
        if len(shards) > 1:
            elements = sum(map(prod, self.theirs.values()))
            where = {key: name for name, keys in zip(names, shards, strict=True) for key in keys}
            metadata = {"total_parameters": elements, "total_size": total}
            write_json(folder / INDEX, {"metadata": metadata, "weight_map": where})
        return len(shards), total

    def _dtype(self, key: str) -> str:
        return self.dtype or self.weights.entries[self._of[key]][0]

    def _bytes(self, key: str) -> int:
        return prod(self.theirs[key]) * DTYPES[self._dtype(key)].itemsize

    def _shards(self, most_bytes: int) -> list[list[str]]:
        """Fill files one after the other."""
        shards: list[list[str]] = [[]]
        filled = 0
        for key in self.theirs:
            size = self._bytes(key)
            if shards[-1] and filled + size > most_bytes:
                shards.append([])
                filled = 0
            shards[-1].append(key)
            filled += size
        return shards

    def _pieces(self, key: str) -> Iterator[torch.Tensor]:
        shape, dtype = self.theirs[key], DTYPES[self._dtype(key)]
        step = max(1, MAX_CHUNK // prod(shape[1:]))
        for row in range(0, shape[0], step):
            count = min(step, shape[0] - row)
            values = self.bands.theirs(key, (row, *(0 for _ in shape[1:])), (count, *shape[1:]), self.weights.read)
            yield values.to(dtype)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a new file of JSON and bring it to the disk."""
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
