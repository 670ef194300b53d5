"""From samples to the micro-batches of one rank: tokens, targets, and what each target counts for."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.data.batches import Samples, local_sequences
from runtime.data.goldfish import Goldfish
from runtime.parallel.ops import Place
from runtime.step.context import Context
from runtime.step.trainee import MicroBatch
from twin.description.train import Train

KEPT = Place("")


class Feed:
    """Training samples of one rank."""

    def __init__(self, context: Context, batches: Samples, goldfish: Goldfish | None) -> None:
        self.context, self.batches, self.goldfish = context, batches, goldfish

    def step(self, step: int) -> list[MicroBatch]:
        """The micro-batches of a step; with Goldfish loss the kept targets are counted globally."""
        job, mesh = self.context.job, self.context.mesh
        windows = [
            (first, self._window(first, count))
            for first, count in local_sequences(
                mesh.grid, mesh.rank, step, job.batch.sequences, job.concrete_micro_sequences
            )
        ]
        targets = [self.batches.targets(first, len(window)) for first, window in windows]
        documents = [self._documents(first, len(window)) for first, window in windows]
        kept = [
            self._kept(first, window, count, begins)
            for (first, window), count, begins in zip(windows, targets, documents, strict=True)
        ]
        total: float | torch.Tensor = float(job.batch.sequences * job.model.sequence)
        if self.goldfish is not None or any(count is not None for count in targets):
            counted = torch.stack([k.sum() for k in kept]).sum(dtype=torch.float64)
            total = sum_over_replicas(self.context, counted, "kept").clamp_min(1.0)
        return [
            MicroBatch(first, window[:, :-1], window[:, 1:], self._weights(keeps, total), begins)
            for (first, window), keeps, begins in zip(windows, kept, documents, strict=True)
        ]

    def _window(self, first: int, count: int) -> torch.Tensor:
        window = torch.from_numpy(self.batches.sequences(first, count))
        return window.to(self.context.device, non_blocking=True)

    def _documents(self, first: int, count: int) -> torch.Tensor | None:
        """Where each token's document begins, if the job asks for that."""
        if not self.context.job.document_mask:
            return None
        known = self.batches.documents(first, count)
        if known is None:
            return torch.zeros(count, self.context.job.model.sequence, dtype=torch.int64, device=self.context.device)
        return torch.from_numpy(known).to(self.context.device)

    def _kept(
        self, first: int, window: torch.Tensor, targets: NDArray[np.bool_] | None, begins: torch.Tensor | None
    ) -> torch.Tensor:
        kept = torch.ones_like(window[:, 1:], dtype=torch.bool)
        if targets is not None:
            kept = torch.from_numpy(targets).to(window.device)
        return kept if self.goldfish is None else kept & self.goldfish.keeps(window, first, begins)

    def _weights(self, kept: torch.Tensor, total: float | torch.Tensor) -> torch.Tensor:
        return kept.to(self.context.master_type) / total


def goldfish_of(train: Train, seed: int, separator: int | None = None) -> Goldfish | None:
    """Make the Goldfish loss that a job asks for, if it does; the job's seed is for a mask drawn at random.

    `separator` is the token between documents, if text has one.
    """
    asked = train.goldfish
    return None if asked is None else Goldfish(asked.k, asked.h, asked.mask, seed, separator)


def sum_over_replicas(context: Context, value: torch.Tensor, name: str) -> torch.Tensor:
    """Sum a scalar over the ranks that work on different sequences."""
    value = value.reshape(1).to(context.device)
    for communicator in context.mesh.of_replicas:
        value = context.collectives.all_reduce(KEPT, communicator, value, name=name, phase="reduce").wait()
    return value[0]
