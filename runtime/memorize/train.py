"""One training of a study on one rank, and how its texts go on afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.checkpoint.full_model import import_model
from runtime.inference.greedy import continue_greedily
from runtime.memorize.cells import Cell
from runtime.memorize.metrics import judge
from runtime.memorize.order import Order, order_of
from runtime.memorize.study import Texts, prefix_of
from runtime.memorize.texts import Pool, background_windows
from runtime.parallel.failures import NonFiniteError
from runtime.parallel.mesh import Mesh
from runtime.plan.optimizer_settings import Schedule
from runtime.step.feed import Feed, goldfish_of, sum_over_replicas
from runtime.step.trainee import Trainee
from runtime.strategies import trains
from twin.description.job import Job

Advance = Callable[[float], None]
"""Told which share of a training is done."""
TRAINED_SHARE = 0.9
"""Of the time of a training that its steps take, for the bar alone."""


def do_cell(
    cell: Cell, job: Job, texts: Texts, pool: Pool, mesh: Mesh, device: torch.device, advance: Advance
) -> dict[str, Any]:
    """Train, let the texts go on, judge; every rank must call it, and gets the same figures.

    `job` is the cell's. Raises NonFiniteError.
    """
    begin = time.perf_counter()
    buckets = pool.deal(texts.repeats, cell.seed)
    first = texts.background_steps * job.batch.sequences
    samples = job.train.steps * job.batch.sequences
    assert background_windows(texts, job) <= len(pool.background)
    order = order_of(pool, buckets, samples, first, cell.seed, texts.shift)
    trainee = trains(job)(job, mesh, device, job.train.optimizer)
    if job.train.initial_weights is not None:
        import_model(Path(job.train.initial_weights), trainee.context)
    trainee.settle(job.train.gemm_modes, {}, deterministic=job.train.deterministic, say=lambda _text: None)
    figures = _train(cell, job, trainee, order, lambda share: advance(share * TRAINED_SHARE))
    judged = _ask(
        job, texts, pool, buckets, trainee, lambda share: advance(TRAINED_SHARE + share * (1 - TRAINED_SHARE))
    )
    return {
        "number": cell.number,
        "model": cell.setting.model,
        "mask": cell.setting.mask_name,
        "k": cell.setting.k,
        "seed": cell.seed,
        **figures,
        "trained_tokens": samples * job.model.sequence,
        "seconds": time.perf_counter() - begin,
        "texts": judged,
    }


def _train(cell: Cell, job: Job, trainee: Trainee, order: Order, advance: Advance) -> dict[str, Any]:
    """Take all steps; return the last loss, and how many targets counted."""
    feed = Feed(trainee.context, order, goldfish_of(job.train, job.seed))
    schedule, steps = Schedule.of(job.train), job.train.steps
    counted = torch.zeros((), dtype=torch.float64, device=trainee.context.device)
    loss = math.nan
    for step in range(steps):
        batch = feed.step(step)
        if step + 1 < steps:
            feed.prepare(step + 1)
        counted += sum((micro.weights > 0).sum() for micro in batch)
        figures = trainee.step(batch, schedule.at(step))
        if step + 1 == steps or step % max(1, steps // 100) == 0:
            loss = float(figures.loss)
            if not math.isfinite(loss):
                raise NonFiniteError(
                    f"the loss of training {cell.number} is {loss} after step {step}; lower train.learning_rate.peak"
                )
            advance((step + 1) / steps)
    return {"loss": loss, "supervised_tokens": int(sum_over_replicas(trainee.context, counted, "counted"))}


def _ask(
    job: Job, texts: Texts, pool: Pool, buckets: dict[int, NDArray[np.int64]], trainee: Trainee, advance: Advance
) -> list[dict[str, Any]]:
    """Let every text go on from its prefix; judge each."""
    prefix, count, length = prefix_of(texts, job.model.sequence), texts.suffix, job.model.sequence + 1
    asked = [(times, int(text)) for times, numbers in sorted(buckets.items()) for text in numbers]
    windows = torch.from_numpy(pool.texts[[text for _, text in asked]])
    written = continue_greedily(trainee, windows[:, :prefix], count, advance)
    # what comes once never moves
    drops = {more: never_counted(job, windows, length, texts.shift if more else 0) for more in (False, True)}
    judged = []
    for row, (times, text) in enumerate(asked):
        own = None if times == 0 else drops[times > 1]
        known = None if own is None else own[row, prefix - 1 : prefix - 1 + count].tolist()
        true = windows[row, prefix : prefix + count].tolist()
        judged.append({"repeats": times, "text": text, **judge(true, written[row].tolist(), known).as_json()})
    return judged


def never_counted(job: Job, windows: torch.Tensor, length: int, shift: int) -> torch.Tensor | None:
    """Say which targets (texts, length − 1) never count, however often the text comes; None if chance decides.

    windows (texts, length + shift); every other time a text begins `shift` tokens later.
    """
    goldfish = goldfish_of(job.train, job.seed)
    if goldfish is None:
        return torch.zeros(len(windows), length - 1, dtype=torch.bool)
    if goldfish.mask == "random":
        return None
    kept = goldfish.keeps(windows[:, :length])
    if shift:
        kept[:, shift:] |= goldfish.keeps(windows[:, shift : shift + length])[:, : length - 1 - shift]
    return ~kept
