"""Ranks meet, load a checkpoint of a run onto their grid, and answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from runtime.checkpoint.loading import Loaded, load_newest
from runtime.checkpoint.team import Team
from runtime.huggingface.merging import check_asked
from runtime.huggingface.weights import begin_with
from runtime.inference.generate import Choice, generate
from runtime.inference.loss import Score, mean_loss
from runtime.inference.prompts import Prompt
from runtime.inference.texts import Scored, text_of
from runtime.inference.trained import TrainedRun
from runtime.launch.board import Board
from runtime.launch.devices import agree_on_type
from runtime.launch.environment import Process
from runtime.launch.meeting import agree, choose_device, join, make_deterministic, open_store, set_threads
from runtime.parallel.failures import NonFiniteError
from runtime.parallel.mesh import Mesh
from runtime.plan.computed import check_computed
from runtime.records.console import Display, progress
from runtime.step.trainee import Trainee
from runtime.strategies import ranks_of, refuse, trains
from twin.description.problems import fail

T = TypeVar("T")
REMEDY = "restore one from a copy"


@dataclass(frozen=True)
class Answerer:
    """A model as a checkpoint has it, on one rank."""

    trainee: Trainee
    loaded: Loaded
    first: bool
    """True on rank 0, which tells what was found."""


def load(run: TrainedRun, process: Process, prepare: Callable[[], T]) -> tuple[Answerer, T]:
    """Meet, see what only ranks can see, and load the checkpoint; every rank must call it.

    `prepare` is done before, on every rank: what fails in it fails on all, at once. Raises DescriptionError.
    """
    job, options = run.job, run.job.train
    set_threads(process, options.threads)
    if options.deterministic:
        make_deterministic()
    store = open_store(process, options.timeout_seconds) if process.ranks > 1 else None

    def check() -> T:
        check_computed(job)
        refuse(job)
        return prepare()

    all_agree = partial(agree, store, process)
    prepared = all_agree("setup", check)
    device = all_agree("device", lambda: choose_device(options.device, process))
    agree_on_type(Board(store, process), device)
    if store is not None:
        join(process, store, device, options.timeout_seconds)
    mesh = Mesh.create(ranks_of(job), timeout_seconds=options.timeout_seconds)
    # beside adapters there may be the random weights that training began with
    random = job.lora is not None and options.initial_weights is None
    trainee = trains(job)(job, mesh, device, options.optimizer, initialised=random)
    if run.imported:
        loaded = all_agree("weights", lambda: _started(run, trainee))
    else:
        loaded = _newest(run, trainee, mesh)
        if job.lora is not None:
            all_agree("weights", lambda: _beside(trainee, loaded, first=process.rank == 0))
    display = Display(shown=process.rank == 0, steps=0, start=0)
    for line in loaded.rejected:
        display.warn(line)
    return Answerer(trainee, loaded, process.rank == 0), prepared


def _newest(run: TrainedRun, trainee: Trainee, mesh: Mesh) -> Loaded:
    team = Team.of(mesh, None, timeout_seconds=run.job.train.checkpoints.timeout_seconds)
    loaded = load_newest(run.checkpoints, trainee.context, None, team, remedy=REMEDY)
    if loaded is None:
        raise fail(str(run.folder), "its checkpoints have been deleted meanwhile; try again")
    return loaded


def _started(run: TrainedRun, trainee: Trainee) -> Loaded:
    """Load the weights that an import has brought."""
    options = run.job.train
    if options.initial_weights is None:
        raise fail("train.initial_weights", f"{run.folder} names no weights; import the model again")
    begin_with(options, trainee.context)
    return Loaded(step=0, samples=0, extra={}, grid={}, path=run.folder)


def _beside(trainee: Trainee, loaded: Loaded, *, first: bool) -> None:
    """Load the weights that adapters stand beside, if they are still those that they were trained beside."""
    job = trainee.context.job
    if first:
        check_asked(loaded.extra, loaded.path, job)
    begin_with(job.train, trainee.context, adapters=False)


def continue_prompts(
    run: TrainedRun,
    process: Process,
    prompts: Sequence[Prompt],
    count: int,
    choice: Choice,
    tell: Callable[[Loaded, Prompt, list[int]], None],
) -> None:
    """Continue each prompt by so many tokens; rank 0 tells each continuation as it comes. Every rank must call it."""
    answerer, _ = load(run, process, lambda: None)
    with progress("generating", count * len(prompts), shown=answerer.first) as advance:
        done = 0

        def one_more() -> None:
            nonlocal done
            done += 1
            advance(done)

        for prompt in prompts:
            tokens = generate(answerer.trainee, prompt.tokens, count, choice, one_more)
            if answerer.first:
                tell(answerer.loaded, prompt, tokens[len(prompt.tokens) :])


def score_text(
    run: TrainedRun,
    process: Process,
    data: Path | None,
    sequences: int | None,
    key: str,
    tell: Callable[[Loaded, Scored, Score], None],
) -> None:
    """Score text (see `text_of`); rank 0 tells how well it is predicted. Every rank must call it.

    Raises NonFiniteError where the loss is no number.
    """
    answerer, scored = load(run, process, lambda: text_of(run, data, sequences, key))
    with progress("evaluating", scored.count, shown=answerer.first) as advance:
        score = mean_loss(answerer.trainee, scored.windows(), advance)
    if not math.isfinite(score.loss):
        raise NonFiniteError(
            f"{answerer.loaded.path}: the loss on {scored.name} is {score.loss}; take an earlier --step"
        )
    if answerer.first:
        tell(answerer.loaded, scored, score)
