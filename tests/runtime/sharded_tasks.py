"""Weights of a rank after training, for replicas that gather what they have updated in the next step only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from runtime.inference.generate import Choice, generate
from tests.runtime import parity
from tests.runtime.checkpoint import tasks
from twin.strategies.four_d.grid import Grid


def asked(worker: Any, grid: dict[str, int], **options: Any) -> tuple[float, list[int], list[float], list[np.ndarray]]:
    """Train two steps, ask, train two more; the loss and the text between, losses, and what layers compute with."""
    job = parity.describe(grid, **options)
    trainee = parity.build(job, worker.mesh(Grid(**grid)), torch.float64)
    store, losses = trainee.context.store, tasks.train(trainee, 0, 2)
    window = parity.windows(job.model.vocabulary)[4][:2]
    weights = torch.full(window[:, 1:].shape, 1.0 / window[:, 1:].numel(), dtype=torch.float64)
    loss = trainee.loss(window[:, :-1], window[:, 1:], weights).item()
    computed = [p.weight.detach().numpy().copy() for p in store.parameters.values()]
    losses += tasks.train(trainee, 2, 3)
    text = generate(trainee, [1, 2, 3], 4, Choice(0.0, job.seed))
    return loss, text, losses + tasks.train(trainee, 3, 4), computed
