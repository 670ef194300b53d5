"""Evaluation and generation on one rank of a grid, to be compared with the serial model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.data.batches import Batches
from runtime.data.tokens import TokenFile
from runtime.inference.generate import Choice, generate
from runtime.inference.loss import validation_loss
from runtime.strategies.four_d.trainee import FourDTrainee
from tests.runtime import parity
from twin.strategies.four_d.grid import Grid

VOCABULARY = 37  # two ranks of y hold 19 and 18 of them
MODEL = {**parity.MODEL, "vocabulary": VOCABULARY}
LENGTH, WINDOWS = MODEL["sequence"], 11
COUNTS = [1, 3, 8, 9, 11, 50]
PROMPTS = [[5], [1, 2, 3], list(range(LENGTH)), list(range(20, 20 + LENGTH + 5))]
MADE = 12


def held_out() -> np.ndarray:
    """Held-out text: eleven windows and a bit that fills none."""
    generator = np.random.default_rng(3)
    return generator.integers(0, VOCABULARY, WINDOWS * LENGTH + 4).astype(np.uint16)


def build(mesh: Any, grid: dict[str, int], **options: Any) -> FourDTrainee:
    """Make a model whose weights are large enough that its guesses are far from uniform."""
    job = parity.describe(grid, model=MODEL, **options)
    trainee = parity.build(job, mesh, torch.float64)
    trainee.context.store.compute.mul_(5)
    return trainee


def losses(worker: Any, grid: dict[str, int], **options: Any) -> list[float]:
    """Validation loss for some numbers of sequences."""
    trainee = build(worker.mesh(Grid(**grid)), grid, **options)
    file = TokenFile(Path("validation.bin"), held_out(), "")
    batches = Batches(file, LENGTH, 0, VOCABULARY, shuffle=False)
    found = [validation_loss(trainee, batches, count) for count in COUNTS]
    assert trainee.context.training
    return found


def texts(worker: Any, grid: dict[str, int], temperature: float, **options: Any) -> list[list[int]]:
    """The prompts, continued."""
    trainee = build(worker.mesh(Grid(**grid)), grid, **options)
    found = [generate(trainee, prompt, MADE, Choice(temperature, trainee.context.job.seed)) for prompt in PROMPTS]
    assert trainee.context.training
    return found
