"""What a run is asked to do, and everything that can be wrong with that before ranks meet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.checkpoint.fingerprint import fingerprint
from runtime.data.tokenizer import begun, load_tokenizer
from runtime.launch.environment import Process
from runtime.launch.meeting import choose_device
from runtime.plan.computed import check_computed
from runtime.plan.sources import Sources, open_sources
from runtime.plan.weights import check_there, look_into
from runtime.records.run_directory import check_directory
from runtime.tracing.wanted import TraceWanted
from runtime.watch.wanted import WatchWanted
from twin.description.huggingface import PREFIX, is_directory_of, located
from twin.description.job import Job
from twin.description.lora import Lora
from twin.description.model import BEYOND, Model
from twin.description.problems import fail
from twin.description.train import GoldfishLoss, Train, with_paths
from twin.strategies import Chosen

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
    chosen: Chosen | None = None
    """What `strategy: auto` chose, which `job` is; None where the job names its strategy."""
    accept_changes: bool = False
    """Go on from a checkpoint with options that the steps before it were not taken with."""

    def identity(self, sources: Sources) -> dict[str, Any]:
        """What must stay the same when a run is continued; grid, steps and overlap may change."""
        job, goldfish = self.job, self.options.goldfish
        adapters = {} if job.lora is None else identity_of_adapters(job.lora, self.options)
        return {
            "name": job.name,
            "model": identity_of(job.model),
            "precision": job.precision,
            "dropout": job.dropout,
            "document_mask": job.document_mask or None,  # runs before November 2026 did not write it down
            "seed": job.seed,
            "sequences": job.batch.sequences,
            **sources.identity(),
            "goldfish": None if goldfish is None else identity_of_loss(goldfish),
            **adapters,
        }

    def kept_job(self) -> dict[str, Any]:
        """Describe the whole job as it is trained now, as JSON; its paths do not depend on the present directory."""
        train = self.options
        job = self.job.model_copy(update={"train": with_paths(train, _absolute)})
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
    return {"lora": lora.model_dump(mode="json"), "base": base}


def check_plan(plan: Plan, process: Process) -> tuple[torch.device, Sources]:
    """Return this rank's device and what it reads, if the run can begin as far as this rank can see.

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
    sources = open_sources(job, options)
    check_there(options, job)
    if options.sample.tokens and max(prompt_tokens(options, sources)) >= job.model.vocabulary:
        raise fail(
            "train.sample.prompt",
            f"has tokens beyond the model's vocabulary of {job.model.vocabulary}",
            options.sample.prompt,
        )
    if process.rank == 0:  # before a run that is there is deleted for it
        look_into(options, job, sources)
        check_directory(plan.out, plan.identity(sources), force=plan.force)
    return device, sources


def prompt_tokens(options: Train, sources: Sources) -> list[int]:
    """Tokens that the sample begins with; at least one."""
    tokenizer = load_tokenizer(sources.directory)
    return [int(token) for token in begun(tokenizer, tokenizer.encode(options.sample.prompt))] or [0]
