"""The weights that a run starts from, looked into before anything is made or deleted for them."""

from __future__ import annotations

from pathlib import Path

from runtime.checkpoint.fit import check_file
from runtime.checkpoint.full_model import shape_of
from runtime.checkpoint.tensor_file import TensorFile, UnusableFileError
from runtime.data.manifest import TOKENIZER
from runtime.data.words import has_words, words_of
from runtime.huggingface.companions import companions_of
from runtime.huggingface.families import parameters
from runtime.huggingface.peft_in import family_of, read_adapters
from runtime.huggingface.source import Source
from runtime.huggingface.weights import check_same
from runtime.plan.sources import Sources
from twin.description.huggingface import is_directory_of, located, read_model
from twin.description.job import Job
from twin.description.problems import fail
from twin.description.train import Train


def check_there(train: Train, job: Job) -> None:
    """See whether the weights to start from are there at all; raises DescriptionError."""
    if (given := train.initial_weights) is not None:
        if is_directory_of(given):
            if not located(given, Path()).is_dir():
                raise fail("train.initial_weights", "no such directory", given)
        elif not Path(given).is_file():
            raise fail("train.initial_weights", "no such file", given)
    if train.initial_adapters is not None and job.lora is not None and not Path(train.initial_adapters).is_dir():
        raise fail("train.initial_adapters", "no such directory", train.initial_adapters)


def look_into(train: Train, job: Job, sources: Sources) -> None:
    """See whether they are the job's model, and its data in the words that they know; raises DescriptionError.

    No weight is read.
    """
    if train.initial_adapters is not None and job.lora is not None:
        read_adapters(Path(train.initial_adapters), job.lora, job.model, family_of(train.initial_weights))
    if (given := train.initial_weights) is None:
        return
    if is_directory_of(given):
        directory = located(given, Path())
        check_same(job.model, read_model(directory, job.model.sequence), directory)
        with Source(directory, job.model):
            pass
    else:
        try:
            with TensorFile(Path(given)) as file:
                found = {name: (entry.shape, entry.dtype) for name, entry in file.entries.items()}
                check_file(found, shape_of(file), job.model, Path(given), parameters(job.model))
        except UnusableFileError as error:
            raise fail(str(error.path), error.reason) from None
    if not train.other_tokenizer:
        _check_words(given, sources)


def _check_words(given: str, sources: Sources) -> None:
    """Refuse data in other tokens than those of the tokenizer that came with the weights, if one did."""
    came = companions_of(given)
    known = None if came is None else words_of(came / TOKENIZER)
    if came is None or known is None:
        return
    used = None if sources.parts[0].manifest.tokenizer == "bytes" else words_of(sources.directory / TOKENIZER)
    if has_words(used, known):
        return
    what = "bytes" if used is None else f"tokens of {sources.directory / TOKENIZER}"
    raise fail(
        "train.data",
        f"is in {what}, but {came / TOKENIZER} came with the weights: the same number is another word to them; build "
        f"it with that one (`fourfold data DIR --tokenizer {came / TOKENIZER}`), or set train.other_tokenizer: true "
        "for a model that is to learn new words",
        str(sources.directory),
    )
