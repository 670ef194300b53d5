"""`fourfold export --peft`: the adapters of a run as a directory that PEFT reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.checkpoint.directory import appearing
from runtime.checkpoint.full_model import find_checkpoint
from runtime.checkpoint.tensor_file import UnusableFileError, write_pieces
from runtime.huggingface.exporting import write_json
from runtime.huggingface.merging import Adapted, open_adapters
from runtime.huggingface.peft import CONFIG, WEIGHTS, Module, config_of, modules
from runtime.huggingface.peft_in import family_of
from twin.description.huggingface import is_directory_of, located
from twin.description.model import Model
from twin.description.problems import fail


@dataclass(frozen=True)
class GivenAdapters:
    """What was written."""

    directory: Path
    source: Path
    family: str
    parameters: int
    bytes: int


def export_peft(run: Path, out: Path) -> GivenAdapters:
    """Write the adapters of a run, or of a checkpoint, into a new directory, in fp32.

    Raises DescriptionError if it trained none, or what is read is damaged.
    """
    try:
        with open_adapters(run) as adapted:
            if adapted is None:
                find_checkpoint(run)
                raise fail(str(run), "has no adapters: it was not trained with lora; export it without --peft")
            model, family = Model.model_validate(dict(adapted.weights.model)), family_of(adapted.base, "--peft")
            lora = adapted.lora
            wanted = [m for m in modules(model, family) if any(part.target in lora.targets for part in m.parts)]
            pieces = {key: value for module in wanted for key, value in _pieces(module, adapted)}
            header = {key: ("F32", tuple(value.shape)) for key, value in pieces.items()}
            base = adapted.base or ""
            named = str(located(base, Path())) if is_directory_of(base) else base
            with appearing(out) as temporary:
                write_pieces(temporary / WEIGHTS, header, ((value,) for value in pieces.values()), {"format": "pt"})
                write_json(temporary / CONFIG, config_of(lora, wanted, family, named))
            return GivenAdapters(
                out, adapted.weights.path, family, lora.parameters(model), (out / WEIGHTS).stat().st_size
            )
    except UnusableFileError as error:
        raise fail(str(error.path), error.reason) from None


def _pieces(module: Module, adapted: Adapted) -> Iterator[tuple[str, torch.Tensor]]:
    """Make A and B of a module: every target's A below the one before, its B in a block of its own."""
    rank, weights = adapted.lora.rank, adapted.weights
    parts = [part for part in module.parts if part.target in adapted.lora.targets]
    a = torch.empty(rank * len(parts), module.columns)
    b = torch.zeros(module.rows, rank * len(parts))
    for index, part in enumerate(parts):
        own = slice(index * rank, (index + 1) * rank)
        a[own] = weights.read(f"{part.name}_a", (0, 0), (rank, module.columns)).to(torch.float32)
        of_part = weights.read(f"{part.name}_b", (0, 0), (part.rows, rank)).to(torch.float32)
        for there, here, count in part.places:
            b[there : there + count, own] = of_part[here : here + count]
    yield module.keys[0], a
    yield module.keys[1], b
