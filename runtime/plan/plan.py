"""What a run is asked to do, and everything that can be wrong with that before ranks meet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.checkpoint.fingerprint import fingerprint
from runtime.data.build import default_dataset
from runtime.data.tokenizer import load_tokenizer
from runtime.data.tokens import DataSet, open_dataset
from runtime.launch.environment import Process
from runtime.launch.meeting import choose_device
from runtime.records.run_directory import check_directory
from runtime.tracing.wanted import TraceWanted
from runtime.watch.wanted import WatchWanted
from twin.description.attention import UNNAMED_ATTENTION
from twin.description.huggingface import PREFIX, is_directory_of, located
from twin.description.job import Job
from twin.description.lora import Lora
from twin.description.model import BEYOND, Model
from twin.description.problems import fail
from twin.description.train import PATHS, STANDARD_LIBRARY, GoldfishLoss, Train

NEWER = (*BEYOND, "window")
"""Keys of a model that runs before November 2026 did not write down."""


@dataclass(frozen=True)
class Plan:
    """A run."""

    job: Job
    options: Train
    out: Path
    trace: TraceWanted | None = None
    force: bool = False
    """Begin anew where there is a run already."""
    watch: WatchWanted | None = None
    accept_changes: bool = False
    """Go on from a checkpoint with options that the steps before it were not taken with."""

    def identity(self, data: DataSet) -> dict[str, Any]:
        """What must stay the same when a run is continued; grid, steps and overlap may change."""
        job, goldfish = self.job, self.options.goldfish
        adapters = {} if job.lora is None else {"lora": identity_of_adapters(job.lora, self.options)}
        return {
            "name": job.name,
            "model": identity_of(job.model),
            "precision": job.precision,
            "dropout": job.dropout,
            "seed": job.seed,
            "sequences": job.batch.sequences,
            "data": data.manifest.model_dump(mode="json"),
            "goldfish": None if goldfish is None else identity_of_loss(goldfish),
            **adapters,
        }

    def kept_job(self) -> dict[str, Any]:
        """Describe the whole job as it is trained now, as JSON; its paths do not depend on the present directory."""
        train = self.options
        changes = {
            key: _absolute(value) for key in PATHS if (value := getattr(train, key)) and value != STANDARD_LIBRARY
        }
        job = self.job.model_copy(update={"train": train.model_copy(update=changes)})
        return job.model_dump(mode="json", by_alias=True)


def _absolute(value: str) -> str:
    return f"{PREFIX}{located(value, Path()).absolute()}" if is_directory_of(value) else str(Path(value).absolute())


def identity_of(model: Model) -> dict[str, Any]:
    """Write down a shape as runs before November 2026 did, where it has nothing that they did not know."""
    usual = {key for key in NEWER if getattr(model, key) == Model.model_fields[key].default}
    return model.model_dump(mode="json", by_alias=True, exclude={"name", *usual})


def identity_of_loss(goldfish: GoldfishLoss) -> dict[str, Any]:
    """Write down a Goldfish loss as runs did before there was a choice of masks, where it has the mask they had."""
    usual = goldfish.mask == GoldfishLoss.model_fields["mask"].default
    return goldfish.model_dump(mode="json", exclude={"mask"} if usual else set())


def identity_of_adapters(lora: Lora, train: Train) -> dict[str, Any]:
    """Write down adapters with the weights that they stand beside: these are in no checkpoint."""
    base = None if train.initial_weights is None else fingerprint(train.initial_weights)
    return {**lora.model_dump(mode="json"), "base": base}


def check_plan(plan: Plan, process: Process) -> tuple[torch.device, DataSet]:
    """Return this rank's device and the data, if the run can begin as far as this rank can see.

    Raises DescriptionError.
    """
    job, options = plan.job, plan.options
    if process.ranks != job.ranks and not (options.elastic and job.ranks < process.ranks):
        raise fail(
            "ranks",
            f"the job wants {job.ranks} ranks ({job.concrete_grid}), but {process.ranks} "
            "were started; start as many, --set ranks and grid, or let the run choose a grid for "
            "what is there (train.elastic: true)",
            process.ranks,
        )
    check_computed(job)
    device = choose_device(options.device, process)
    data = open_dataset(data_directory(options), vocabulary=job.model.vocabulary, sequence=job.model.sequence)
    _check_weights(options.initial_weights)
    if options.initial_adapters is not None and not Path(options.initial_adapters).is_dir():
        raise fail("train.initial_adapters", "no such directory", options.initial_adapters)
    if options.sample.tokens and max(prompt_tokens(options, data)) >= job.model.vocabulary:
        raise fail(
            "train.sample.prompt",
            f"has tokens beyond the model's vocabulary of {job.model.vocabulary}",
            options.sample.prompt,
        )
    if process.rank == 0:
        check_directory(plan.out, plan.identity(data), force=plan.force)
    return device, data


def check_computed(job: Job) -> None:
    """Refuse keys of a job that the twin simulates and the runtime does not compute; raises DescriptionError."""
    if job.precision == "fp16":
        raise fail(
            "precision", "the runtime trains in bf16 or fp32; fp16 needs loss scaling, which it does not have", "fp16"
        )
    if job.attention not in UNNAMED_ATTENTION:
        raise fail(
            "attention",
            f"the runtime trains with {', '.join(UNNAMED_ATTENTION)}; kernels by name are for simulation, and PyTorch "
            "chooses among its own for flash",
            job.attention,
        )
    if job.cuda_graphs:
        raise fail("cuda_graphs", "is for simulation; the runtime launches its kernels one by one", True)
    if job.profiler:
        raise fail("profiler", "is for simulation; use the runtime's own traces: --trace", True)


def data_directory(train: Train) -> Path:
    """Return where a job's data set is; the standard library's is built if it is not there yet."""
    return default_dataset(cache_directory()) if train.data == STANDARD_LIBRARY else Path(train.data)


def _check_weights(given: str | None) -> None:
    """See whether the weights to start from are there at all."""
    if given is None:
        return
    if is_directory_of(given):
        if not located(given, Path()).is_dir():
            raise fail("train.initial_weights", "no such directory", given)
    elif not Path(given).is_file():
        raise fail("train.initial_weights", "no such file", given)


def prompt_tokens(options: Train, data: DataSet) -> list[int]:
    """Tokens that the sample begins with; at least one."""
    tokenizer = load_tokenizer(data.directory)
    return [int(token) for token in tokenizer.encode(options.sample.prompt)] or [0]


def cache_directory() -> Path:
    """Where data sets are kept that Fourfold makes by itself."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fourfold"
