"""A rank's own part of the weights of a Hugging Face directory: it reads the bytes of its shards and no others."""

from __future__ import annotations

from pathlib import Path

from runtime.checkpoint.full_model import import_model
from runtime.checkpoint.pieces import Range, rectangles
from runtime.checkpoint.tensor_file import UnusableFileError
from runtime.huggingface.peft_in import family_of, load_adapters
from runtime.huggingface.source import Source
from runtime.step.context import Context
from twin.description.huggingface import is_directory_of, located, read_model
from twin.description.model import Model
from twin.description.problems import DescriptionError, Problem, fail
from twin.description.train import Train

SAME = (
    *("heads", "key_value_heads", "head_size", "activation", "norm", "norm_epsilon", "qk_norm", "residual"),
    *("positions", "rotary_size"),
)
"""What the weights were trained as; the rest is in their shapes, or may change."""
MAY_CHANGE = ("rotary_base", "rotary_scaling")
"""What may change for longer text, and is said."""


def load_weights(directory: Path, context: Context) -> int:
    """Fill this rank's weights; return the bytes that it has read of tensors.

    Every rank reads on its own. Raises DescriptionError, before a weight is changed, if the directory's model is
    another one or its files are not sound.
    """
    store, model = context.store, context.job.model
    check_same(model, read_model(directory, model.sequence), directory)
    try:
        with Source(directory, model) as source:
            for parameter in store.of_model:
                held = Range(parameter, 0, parameter.shard.stored)
                for rectangle in rectangles(held):
                    values = source.read(parameter.spec.name, rectangle.offsets, rectangle.sizes)
                    store.put(parameter.start + rectangle.first, values.reshape(-1).to(store.master_type))
            return source.bytes_read
    except UnusableFileError as error:
        raise fail(str(error.path), error.reason) from None


def initial_weights(named: str, context: Context) -> None:
    """Fill this rank's weights from what `train.initial_weights` names."""
    if is_directory_of(named):
        load_weights(located(named, Path()), context)
    else:
        import_model(Path(named), context)


def begin_with(options: Train, context: Context, *, adapters: bool = True) -> str | None:
    """Fill this rank's weights from what `train:` names, if it names any, and adapters too if they are wanted.

    Return what is to be said of them.
    """
    told = None
    if (named := options.initial_weights) is not None:
        initial_weights(named, context)
        if is_directory_of(named):
            model = context.job.model
            told = changed(model, read_model(located(named, Path()), model.sequence))
    if adapters and options.initial_adapters is not None:
        load_adapters(Path(options.initial_adapters), context, family_of(options.initial_weights))
    return told


def changed(wanted: Model, there: Model) -> str | None:
    """Say how positions are told otherwise than the weights of a directory were trained with, if they are."""
    if wanted.positions != "rotary":
        return None
    pairs = {key: (getattr(there, key), getattr(wanted, key)) for key in MAY_CHANGE}
    told = [f"model.{key} is {one} there, {own} here" for key, (one, own) in pairs.items() if one != own]
    return "; ".join(told) or None


def check_same(wanted: Model, there: Model, directory: Path) -> None:
    """Refuse weights of another model, where their shapes may not tell."""
    problems = [
        Problem(f"model.{key}", f"is {getattr(there, key)!r} there; the job has {getattr(wanted, key)!r}")
        for key in SAME
        if getattr(there, key) != getattr(wanted, key)
    ]
    if problems:
        remedy = f"train the model they are of: `model: hf:{directory}`"
        raise DescriptionError([*problems, Problem("", remedy)], str(directory))
