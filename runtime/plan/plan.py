"""What a run is asked to do, and everything that can be wrong with that before ranks meet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.data.build import default_dataset
from runtime.data.tokenizer import load_tokenizer
from runtime.data.tokens import DataSet, open_dataset
from runtime.launch.environment import Process
from runtime.launch.meeting import choose_device
from runtime.records.run_directory import check_directory
from runtime.tracing.wanted import TraceWanted
from runtime.watch.wanted import WatchWanted
from twin.description.attention import UNNAMED_ATTENTION
from twin.description.huggingface import is_directory_of, located
from twin.description.job import Job
from twin.description.problems import fail
from twin.description.train import STANDARD_LIBRARY, Train


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
        return {
            "name": job.name,
            "model": job.model.model_dump(mode="json", by_alias=True, exclude={"name"}),
            "precision": job.precision,
            "dropout": job.dropout,
            "seed": job.seed,
            "sequences": job.batch.sequences,
            "data": data.manifest.model_dump(mode="json"),
            "goldfish": None if goldfish is None else goldfish.model_dump(mode="json"),
        }


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
    device = choose_device(options.device, process)
    path = Path(options.data)
    if options.data == STANDARD_LIBRARY:
        path = default_dataset(cache_directory())
    data = open_dataset(path, vocabulary=job.model.vocabulary, sequence=job.model.sequence)
    _check_weights(options.initial_weights)
    if options.sample.tokens and max(prompt_tokens(options, data)) >= job.model.vocabulary:
        raise fail(
            "train.sample.prompt",
            f"has tokens beyond the model's vocabulary of {job.model.vocabulary}",
            options.sample.prompt,
        )
    if process.rank == 0:
        check_directory(plan.out, plan.identity(data), force=plan.force)
    return device, data


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
