"""Train each case for a few seconds on one device, and note what was seen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from runtime.model.attention_backend import attention_backend
from runtime.parallel.mesh import Mesh
from runtime.smoke.cases import CASES, Case, described
from runtime.step.trainee import MicroBatch, Trainee
from runtime.strategies import trains
from twin.description.job import Job
from twin.description.train import Adam
from twin.strategies import strategy_of

LEARNING_RATE = 1e-3
WARM_UP, MIN_STEPS = 2, 3


@dataclass(frozen=True)
class Seen:
    """What a case showed."""

    name: str
    error: str = ""
    """Why it failed; nothing if it did not."""
    skipped: bool = False
    """Whether the job's machine or model has no such path."""
    steps: int = 0
    first_loss: float = math.nan
    last_loss: float = math.nan
    """Of the same batch, which a model that learns comes to know."""
    step_seconds: float = math.nan
    host_seconds: float | None = None
    """Until the host has issued a step, on a GPU."""
    peak_bytes: float | None = None
    """Most that was allocated on a GPU."""
    predicted_bytes: float = math.nan
    attention: str = ""


def smoke(job: Job, device: torch.device, seconds: float, cases: tuple[Case, ...] = CASES) -> Iterator[Seen]:
    """Try every case for about an equal part of so many seconds; a failure ends its case alone."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # it is waited for by its being the current one
    for case in cases:
        found = described(case, job)
        if isinstance(found, str):
            yield Seen(case.name, found, skipped=True)
            continue
        try:
            yield _tried(case.name, found, device, seconds / len(cases))
        except Exception as error:  # whatever a driver or a kernel raises is what is to be told
            text = str(error).strip().splitlines()
            yield Seen(case.name, f"{type(error).__name__}: {text[0] if text else 'no message'}")


def _tried(name: str, job: Job, device: torch.device, seconds: float) -> Seen:
    trainee = trains(job)(job, Mesh.alone(job.concrete_grid), device, Adam(), compile_=job.fused_elementwise)
    batch = _batch(job, trainee)
    strategy = strategy_of(job)
    on_gpu = device.type == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else _nothing
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    losses = [float(trainee.step(batch, LEARNING_RATE).loss) for _ in range(WARM_UP)]
    issued: list[float] = []
    wait()
    begin, until = time.perf_counter(), time.perf_counter() + seconds
    while len(issued) < MIN_STEPS or time.perf_counter() < until:
        at = time.perf_counter()
        figures = trainee.step(batch, LEARNING_RATE)
        issued.append(time.perf_counter() - at)
        wait()
    took = (time.perf_counter() - begin) / len(issued)
    losses.append(float(figures.loss))
    bad = [loss for loss in losses if not math.isfinite(loss)]
    worse = (
        "" if losses[-1] < losses[0] or job.dropout else "the loss of one batch, seen again and again, does not fall"
    )
    return Seen(
        name,
        f"the loss is {bad[0]}" if bad else worse,
        steps=WARM_UP + len(issued),
        first_loss=losses[0],
        last_loss=losses[-1],
        step_seconds=took,
        host_seconds=sum(issued) / len(issued) if on_gpu else None,
        peak_bytes=float(torch.cuda.max_memory_allocated(device)) if on_gpu else None,
        predicted_bytes=sum(strategy.memory(job, strategy.roles(job)[0]).values()),
        attention=attention_backend(
            job, device, trainee.context.compute_type, job.model.heads, job.model.key_value_heads
        ),
    )


def _batch(job: Job, trainee: Trainee) -> list[MicroBatch]:
    """Make random tokens, each the target of the one before; documents of a quarter of a sequence."""
    context, length = trainee.context, job.model.sequence
    generator = torch.Generator().manual_seed(1)
    size = job.concrete_micro_sequences
    weight = 1.0 / (job.batch.sequences * length)
    begins = torch.arange(length).div(max(1, length // 4), rounding_mode="floor").mul(max(1, length // 4))
    found = []
    for index in range(job.micro_steps):
        tokens = torch.randint(0, job.model.vocabulary, (size, length + 1), generator=generator).to(context.device)
        documents: Any = begins.expand(size, length).to(context.device) if job.document_mask else None
        weights = torch.full((size, length), weight, dtype=context.master_type, device=context.device)
        found.append(MicroBatch(index * size, tokens[:, :-1], tokens[:, 1:], weights, documents))
    return found


def _nothing() -> None:
    """A CPU is done when it returns."""
