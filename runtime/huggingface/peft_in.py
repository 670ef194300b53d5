"""Adapters that PEFT has written, put where a rank trains them from."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from runtime.checkpoint.fit import refuse
from runtime.checkpoint.tensor_file import DTYPES, TensorEntry, TensorFile, UnusableFileError
from runtime.huggingface.companions import find_companions
from runtime.huggingface.peft import WEIGHTS, Module, Part, modules, ratio, read_config
from runtime.huggingface.source import PICKLES
from runtime.step.context import Context
from runtime.weights.store import Parameter
from twin.description.huggingface import CONFIG, is_directory_of, located
from twin.description.huggingface import read_config as read_model_config
from twin.description.lora import Lora
from twin.description.model import Model
from twin.description.problems import Problem, fail

NAMED = re.compile(r"\.lora_(A|B)\.[A-Za-z0-9_]+\.weight$")
"""Older files name the adapter too, such as `lora_A.default.weight`."""


def load_adapters(directory: Path, context: Context, family: str) -> None:
    """Fill this rank's adapters from a directory of PEFT's, for the model as files of a family have it.

    Every rank reads on its own. Raises DescriptionError as `read_adapters`, before a weight is changed.
    """
    lora = context.job.lora
    assert lora is not None
    made = read_adapters(directory, lora, context.job.model, family)
    for parameter in context.store.trained:
        _put(context, parameter, made[parameter.spec.name])


def read_adapters(directory: Path, lora: Lora, model: Model, family: str) -> dict[str, torch.Tensor]:
    """Read A and B of every target by their names here, full and in fp32.

    Raises DescriptionError if rank or targets are others than the job's, or files are not sound.
    """
    path = directory / WEIGHTS
    made: dict[str, torch.Tensor] = {}
    try:
        scales = read_config(directory)
        if not path.exists():
            raise fail(str(path), _missing(directory))
        with TensorFile(path.resolve()) as file:
            there = {NAMED.sub(lambda found: f".lora_{found[1]}.weight", name): name for name in file.entries}
            if len(there) < len(file.entries):
                raise fail(str(path), "holds several adapters; save one of them alone")
            known = modules(model, family)
            refuse(_problems(file, there, known, lora), path, "set lora to what the adapters were made with")
            for module in known:
                if not any(part.target in lora.targets for part in module.parts):
                    continue
                a, b = (file.read(there[key])[0].to(torch.float32) for key in module.keys)
                if not bool(a.isfinite().all() and b.isfinite().all()):
                    raise fail(str(path), f"{module.name} has numbers that are not finite")
                scale = ratio(scales.of(module, len(a)), lora.scale)
                for index, part in enumerate(p for p in module.parts if p.target in lora.targets):
                    made |= _taken(part, index, a, b * scale, lora, path)
                _refuse_others(module, b, lora, path)
    except UnusableFileError as error:
        raise fail(str(error.path), error.reason) from None
    return made


def _missing(directory: Path) -> str:
    other = next((p for p in sorted(directory.glob("adapter_model*")) if p.suffix in PICKLES), None)
    reason = "is missing" if other is None else f"is missing; {other.name} is a pickle, which is never opened"
    return f"{reason}: save adapters with PEFT's save_pretrained, which writes safetensors"


def family_of(weights: str | None, key: str = "train.initial_adapters") -> str:
    """Return the family of the files whose names adapters have: that of the weights which they stand beside.

    `key` is what is refused if these are of none.
    """
    beside = None
    if weights is not None:
        beside = located(weights, Path()) if is_directory_of(weights) else find_companions(Path(weights))
    if beside is None or not (beside / CONFIG).is_file():
        raise fail(
            key,
            "the names in PEFT's files are those of a Hugging Face model: start from one, "
            "train.initial_weights: hf:DIR, or from an import",
            weights,
        )
    return str(read_model_config(beside)["model_type"])


def _problems(file: TensorFile, there: dict[str, str], known: list[Module], lora: Lora) -> list[Problem]:
    """Hold every tensor against what the job's adapters need."""
    found: list[Problem] = []
    expected: set[str] = set()
    for module in known:
        adapted = [part.target for part in module.parts if part.target in lora.targets]
        if not adapted:
            continue
        expected |= set(module.keys)
        ranks = (lora.rank, len(adapted) * lora.rank)
        for key, rank_at, size in zip(module.keys, (0, 1), (module.columns, module.rows), strict=True):
            if key not in there:
                found.append(Problem(key, f"is missing, but lora.targets has {', '.join(adapted)}"))
            elif wrong := _wrong(file.entries[there[key]], rank_at, size, ranks):
                found.append(Problem(key, wrong))
    strange = [name for name in there if name not in expected]
    return found + [Problem(name, "has no place: no target of the job is adapted by it") for name in strange]


def _wrong(entry: TensorEntry, rank_at: int, size: int, ranks: tuple[int, int]) -> str | None:
    """Say what is wrong with A, whose rank is its rows (at 0), or with B, whose rank is its columns."""
    shape = list(entry.shape)
    if entry.dtype not in DTYPES or len(shape) != 2:
        return f"has dtype {entry.dtype} and shape {shape}; a matrix of floats is read"
    if shape[1 - rank_at] != size:
        return f"has shape {shape}; the model needs {size} where it has {shape[1 - rank_at]}"
    if shape[rank_at] not in ranks:
        return f"has rank {shape[rank_at]}; the job's lora.rank is {ranks[0]}"
    return None


def _taken(part: Part, index: int, a: torch.Tensor, b: torch.Tensor, lora: Lora, path: Path) -> dict[str, torch.Tensor]:
    """Take one target's A and B: its rows of B, and of several blocks its own."""
    taken = torch.zeros(part.rows, b.shape[1])
    for there, here, count in part.places:
        taken[here : here + count] = b[there : there + count]
    if len(a) != lora.rank:  # blocks: its columns, and nothing beside them
        own = slice(index * lora.rank, (index + 1) * lora.rank)
        beside = taken.clone()
        beside[:, own] = 0
        if beside.any():
            raise fail(str(path), f"the adapters of {part.name} are mixed with others; set lora.rank: {len(a)}")
        a, taken = a[own], taken[:, own]
    return {f"{part.name}_a": a, f"{part.name}_b": taken}


def _refuse_others(module: Module, b: torch.Tensor, lora: Lora, path: Path) -> None:
    """Refuse a module that adapts what the job does not."""
    for part in module.parts:
        if part.target not in lora.targets and any(b[t : t + n].any() for t, _, n in part.places):
            raise fail(str(path), f"{module.name} adapts {part.target} too: add it to lora.targets")


def _put(context: Context, parameter: Parameter, full: torch.Tensor) -> None:
    store = context.store
    for rectangle in parameter.shard.rectangles():
        place = tuple(slice(o, o + n) for o, n in zip(rectangle.offsets, rectangle.sizes, strict=True))
        store.put(parameter.start + rectangle.first, full[place].reshape(-1).to(store.master_type))
