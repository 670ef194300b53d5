"""The weights of a run that trained adapters: those it stood beside, with the adapters added to them.

W + (alpha / rank) · B · A is computed in fp32 and rounded to what the weights are stored in. One linear's adapters at
most are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from runtime.checkpoint.fingerprint import fingerprint
from runtime.checkpoint.full_model import Weights, find_checkpoint, open_weights
from runtime.checkpoint.manifest import read_manifest
from runtime.huggingface.source import Source
from twin.description.huggingface import is_directory_of, located
from twin.description.job import Job
from twin.description.lora import Lora, parts_of
from twin.description.model import Model
from twin.description.problems import DescriptionError, fail, from_pydantic

KEY = "lora"
"""In the `extra` of a checkpoint: rank, alpha and targets, where the weights beside them are, and their fingerprint."""
BASE, FINGERPRINT, SEED = "base", "fingerprint", "seed"


@dataclass(frozen=True)
class Adapted:
    """Adapters at rest."""

    weights: Weights
    """A and B of every target."""
    lora: Lora
    base: str | None
    """The weights that they stand beside, as in `train.initial_weights`."""
    fingerprint: str | None

    def check_base(self) -> str:
        """Return where the weights are, if they are still what they were; raises DescriptionError."""
        where = self.weights.path
        if self.base is None:
            remedy = "its adapters stand beside random weights: there is nothing to merge them into"
            raise fail(str(where), remedy)
        check_base(self.base, self.fingerprint)
        return self.base


def check_base(base: str, known: str | None) -> None:
    """Refuse weights that are others than adapters were trained beside; raises DescriptionError."""
    path = located(base, Path()) if is_directory_of(base) else Path(base)
    if not path.exists():
        raise fail(str(path), "the weights that the adapters stand beside are not there any more; put them back")
    if known is not None and fingerprint(base) != known:
        raise fail(str(path), "holds other weights than the adapters were trained beside; put those back")


def about_adapters(extra: Mapping[str, Any], origin: Path) -> tuple[Lora, str | None, str | None] | None:
    """Read what a checkpoint says about adapters: they, the base and its fingerprint; None if it has none."""
    said = extra.get(KEY)
    if said is None:
        return None
    if not isinstance(said, dict):
        raise fail(f"{origin}: {KEY}", "is damaged; take an older checkpoint")
    base, known = said.get(BASE), said.get(FINGERPRINT)
    rest = {key: value for key, value in said.items() if key not in (BASE, FINGERPRINT, SEED)}
    try:
        lora = Lora.model_validate(rest)
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, Lora, KEY), str(origin)) from None
    return lora, base if isinstance(base, str) else None, known if isinstance(known, str) else None


def check_asked(extra: Mapping[str, Any], origin: Path, job: Job) -> None:
    """Refuse to ask adapters of a checkpoint as if they were others, or beside others; raises DescriptionError."""
    said = about_adapters(extra, origin)
    if said is None or job.lora is None:
        raise fail("lora", f"{origin} has {'none' if said is None else 'adapters'}; leave it as it was trained")
    if said[0] != job.lora:
        raise fail("lora", f"the adapters of {origin} were trained with {said[0].model_dump(mode='json')}")
    weights, seed = job.train.initial_weights, extra[KEY].get(SEED)
    if weights is not None:
        check_base(weights, said[2])
    elif seed is not None and seed != job.seed:
        raise fail("seed", f"the adapters stand beside the random weights of seed {seed}", job.seed)


def describe(lora: Lora, weights: str | None, *, named: bool, seed: int = 0) -> dict[str, Any]:
    """Write down what a checkpoint says about adapters beside some weights; `named`: with their fingerprint.

    Without weights they stand beside the random ones of a seed.
    """
    if weights is None:
        return {**lora.model_dump(mode="json"), BASE: None, FINGERPRINT: None, SEED: seed}
    known = fingerprint(weights) if named else None
    return {**lora.model_dump(mode="json"), BASE: weights, FINGERPRINT: known}


@contextmanager
def open_adapters(path: Path) -> Iterator[Adapted | None]:
    """Open a path's adapters, if it means a checkpoint that has any; raises UnusableFileError."""
    if path.is_file() or not _is_checkpoint(path):
        yield None
        return
    checkpoint = find_checkpoint(path)
    said = about_adapters(read_manifest(checkpoint).extra, checkpoint)
    if said is None:
        yield None
        return
    with open_weights(checkpoint) as weights:
        yield Adapted(weights, *said)


def _is_checkpoint(path: Path) -> bool:
    try:
        find_checkpoint(path)
    except DescriptionError:
        return False
    return True


@contextmanager
def open_merged(path: Path, *, rounded: bool = True) -> Iterator[Weights]:
    """Open weights as `open_weights` does; those of adapters merged into what they stand beside.

    Unless `rounded`, merged ones are read in fp32, whatever they are stored in.
    """
    with open_adapters(path) as adapted:
        if adapted is None:
            with open_weights(path) as weights:
                yield weights
            return
        with _opened_base(adapted) as base:
            yield replace(base, path=adapted.weights.path, read=_Merging(base, adapted, rounded=rounded).read)


@contextmanager
def _opened_base(adapted: Adapted) -> Iterator[Weights]:
    named, model = adapted.check_base(), adapted.weights.model
    if not is_directory_of(named):
        with open_weights(Path(named)) as base:
            yield replace(base, model=model)
        return
    with Source(located(named, Path()), Model.model_validate(dict(model))) as source:
        entries = {name: (source.dtype(name), shape) for name, shape in source.layout.ours.items()}
        yield Weights(located(named, Path()), model, entries, source.read)


class _Merging:
    """Adds adapters to rectangles as they are read."""

    def __init__(self, base: Weights, adapted: Adapted, *, rounded: bool) -> None:
        self.base, self.adapted, self.rounded = base, adapted, rounded
        self.model = Model.model_validate(dict(base.model))
        self._held: tuple[str, list[tuple[int, torch.Tensor, torch.Tensor]]] = ("", [])

    def read(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """Read a rectangle."""
        values = self.base.read(name, offsets, sizes)
        layer, linear = _linear_of(name)
        if linear not in self.model.block_linears or not self.adapted.lora.of_linear(self.model, linear):
            return values
        columns = slice(offsets[1], offsets[1] + sizes[1])
        summed = values.to(torch.float32)
        for first, a, b in self._adapters(f"blocks.{layer}.{linear}", linear):
            begin, end = max(first, offsets[0]), min(first + len(b), offsets[0] + sizes[0])
            if begin < end:
                product = b[begin - first : end - first] @ a[:, columns]
                summed[begin - offsets[0] : end - offsets[0]] += self.adapted.lora.scale * product
        return summed.to(values.dtype) if self.rounded else summed

    def _adapters(self, path: str, linear: str) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        """First row, A and B of every adapted target of a linear."""
        if self._held[0] != path:
            found, first = [], 0
            for target, rows in parts_of(self.model, linear):
                if target in self.adapted.lora.targets:
                    found.append(
                        (first, self._whole(f"{path}.adapters.{target}_a"), self._whole(f"{path}.adapters.{target}_b"))
                    )
                first += rows
            self._held = (path, found)
        return self._held[1]

    def _whole(self, name: str) -> torch.Tensor:
        weights = self.adapted.weights
        _, shape = weights.entries[name]
        return weights.read(name, (0, 0), shape).to(torch.float32)


def _linear_of(name: str) -> tuple[str, str]:
    """Return number of the block and name of what a parameter is the weight of; empty outside blocks."""
    words = name.split(".")
    return (words[1], words[2]) if len(words) == 4 and words[0] == "blocks" and words[3] == "weight" else ("", "")
