"""From samples to the micro-batches of one rank: tokens, targets, and what each target counts for."""

from __future__ import annotations

import torch

from runtime.data.ahead import Ahead
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
        self.context, self.goldfish = context, goldfish
        self._ahead = Ahead(batches, context.device, documents=context.job.document_mask)

    def prepare(self, step: int) -> None:
        """Begin to read what a step trains on, which is asked for next."""
        self._ahead.begin(self._local(step))

    def step(self, step: int) -> list[MicroBatch]:
        """The micro-batches of a step; with Goldfish loss the kept targets are counted globally."""
        job, parts = self.context.job, self._ahead.take(self._local(step))
        windows = [(part.first, self._moved(part.window)) for part in parts]
        documents = [self._documents(part.documents, len(part.window)) for part in parts]
        kept = [
            self._kept(first, window, part.targets, begins)
            for (first, window), part, begins in zip(windows, parts, documents, strict=True)
        ]
        total: float | torch.Tensor = float(job.batch.sequences * job.model.sequence)
        if self.goldfish is not None or any(part.targets is not None for part in parts):
            counted = torch.stack([k.sum() for k in kept]).sum(dtype=torch.float64)
            total = sum_over_replicas(self.context, counted, "kept").clamp_min(1.0)
        return [
            MicroBatch(first, window[:, :-1], window[:, 1:], self._weights(keeps, total), begins)
            for (first, window), keeps, begins in zip(windows, kept, documents, strict=True)
        ]

    def _local(self, step: int) -> list[tuple[int, int]]:
        """First and number of the samples of each of this rank's micro-batches of a step."""
        job, mesh = self.context.job, self.context.mesh
        return list(local_sequences(mesh.grid, mesh.rank, step, job.batch.sequences, job.concrete_micro_sequences))

    def _moved(self, read: torch.Tensor) -> torch.Tensor:
        return read.to(self.context.device, non_blocking=True)

    def _documents(self, known: torch.Tensor | None, count: int) -> torch.Tensor | None:
        """Where each token's document begins, if the job asks for that."""
        if not self.context.job.document_mask:
            return None
        if known is None:
            return torch.zeros(count, self.context.job.model.sequence, dtype=torch.int64, device=self.context.device)
        return self._moved(known)

    def _kept(
        self, first: int, window: torch.Tensor, targets: torch.Tensor | None, begins: torch.Tensor | None
    ) -> torch.Tensor:
        kept = torch.ones_like(window[:, 1:], dtype=torch.bool) if targets is None else self._moved(targets)
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
