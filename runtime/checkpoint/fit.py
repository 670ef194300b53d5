"""The fit of a checkpoint, or a full model, to the model that is to be trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from runtime.checkpoint.manifest import Manifest
from runtime.checkpoint.pieces import MODEL, tensor_names
from runtime.checkpoint.tensor_file import DTYPE_NAMES
from runtime.step.context import Context
from twin.description.model import Model
from twin.description.problems import DescriptionError, Problem, did_you_mean

MAX_SHOWN = 12
SAME = (
    *("heads", "kv_heads", "head_width", "activation", "norm", "norm_epsilon", "residual", "positions"),
    *("rotary_base", "rotary_share", "rotary_scaling", "tied_embeddings"),
)
"""Keys of a model that the shapes of its weights do not tell."""

FULL_REMEDY = "give a file of the same model, such as `fourfold export` writes"

Descriptions = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype by name."""
Shapes = Mapping[str, tuple[int, ...]]


def check_checkpoint(manifest: Manifest, context: Context, path: Path) -> None:
    """Refuse a checkpoint of another model, naming what is there and what is needed; every rank must call it."""
    store = context.store
    dtype = DTYPE_NAMES[store.master_type]
    specs = [parameter.spec for parameter in store.trained]
    own = {name: spec.shape for spec in specs for each in spec.names for name in tensor_names(each)}
    expected = _of_all_stages(own, context)
    found = {name: (saved.shape, saved.dtype) for name, saved in manifest.tensors.items()}
    problems = differences(found, expected, {dtype})
    # moments have the shapes of their weights: they are news only if the weights fit
    weights = [p for p in problems if p.path.startswith(f"{MODEL}/")]
    remedy = "resume with the model it was saved from, or choose another directory for checkpoints"
    refuse([*_of_shape(manifest.model, context.job.model), *(weights or problems)], path, remedy)


def check_full_model(found: Descriptions, shape: Mapping[str, Any], context: Context, path: Path) -> None:
    """Refuse a full model that is another one; `shape` is what its file says about itself. Every rank must call it."""
    expected = _of_all_stages({name: p.spec.shape for p in context.store.of_model for name in p.spec.names}, context)
    problems = differences(found, expected, set(DTYPE_NAMES.values()))
    refuse([*_of_shape(shape, context.job.model), *problems], path, FULL_REMEDY)


def _of_all_stages(own: dict[str, tuple[int, ...]], context: Context) -> dict[str, tuple[int, ...]]:
    """Add to shapes by name those of layers that only other ranks of a pipeline have."""
    axis = context.layers_over
    if axis is None:
        return own
    found: list[dict[str, tuple[int, ...]]] = [own] * context.mesh.size(axis)
    dist.all_gather_object(found, own, group=context.mesh.groups[axis])
    return {name: shape for each in found for name, shape in each.items()}


def check_file(found: Descriptions, shape: Mapping[str, Any], model: Model, path: Path, expected: Shapes) -> None:
    """Refuse a full model that is another one than a job's, before there is a rank; see `check_full_model`."""
    refuse([*_of_shape(shape, model), *differences(found, expected, set(DTYPE_NAMES.values()))], path, FULL_REMEDY)


def _of_shape(shape: Mapping[str, Any], wanted: Model) -> list[Problem]:
    model = wanted.model_dump(mode="json")
    return [
        Problem(f"model.{key}", f"was {shape[key]!r} when it was saved; the job has {model[key]!r}")
        for key in SAME
        if key in shape and shape[key] != model[key]
    ]


def differences(found: Descriptions, expected: Shapes, dtypes: Collection[str]) -> list[Problem]:
    """One problem for every tensor that is missing, unknown, or of another shape or dtype."""
    problems = []
    for name, needed in expected.items():
        if name not in found:
            problems.append(Problem(name, f"is missing; the model has it, with shape {list(needed)}"))
            continue
        shape, dtype = found[name]
        if shape != needed:
            problems.append(Problem(name, f"has shape {list(shape)}; the model needs {list(needed)}"))
        elif dtype not in dtypes:
            problems.append(Problem(name, f"has dtype {dtype}; expected {' or '.join(sorted(dtypes))}"))
    missing = [name for name in expected if name not in found]
    for name in found:
        if name not in expected:
            hint = f"; {did_you_mean(name, missing)}" if 0 < len(missing) <= MAX_SHOWN else ""
            problems.append(Problem(name, f"is not a parameter of the model{hint}"))
    return problems


def refuse(problems: list[Problem], path: Path, remedy: str) -> None:
    """Raise DescriptionError with what is wrong with a path, and the remedy, if anything is."""
    if not problems:
        return
    shown = problems[:MAX_SHOWN]
    if more := len(problems) - len(shown):
        shown.append(Problem("", f"and {more} more"))
    raise DescriptionError([*shown, Problem("", remedy)], str(path))
