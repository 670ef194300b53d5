"""A rank of any grid without the others: its own work, with collectives that do nothing.

So each op of a rank is timed as it runs in training, without waiting for anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from runtime.parallel.collectives import Collectives, Handle
from runtime.parallel.mesh import Communicator, Mesh
from runtime.parallel.ops import Listener, Place
from runtime.step.optimizer import Optimizer
from runtime.step.trainee import MicroBatch
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.model import GPT
from runtime.strategies.four_d.trainee import FourDTrainee
from twin.description.train import Adam
from twin.schedule.ops import Phase
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid


@dataclass(frozen=True)
class Quiet(Collectives):
    """Verbs that return at once, with memory of the right size."""

    def all_gather(
        self,
        place: Place,
        communicator: Communicator,
        shard: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        phase: Phase | None = None,
    ) -> Handle:
        """Give back memory for what would be gathered."""
        full = shard.new_zeros(self.mesh.size(communicator) * shard.numel()) if into is None else into
        op = self._op(place, "all_gather", communicator, phase, full)
        return self._start(op, _nothing, lambda: full)

    def reduce_scatter(
        self,
        place: Place,
        communicator: Communicator,
        full: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        phase: Phase | None = None,
    ) -> Handle:
        """Give back this rank's part, as it is."""
        part = full.view(self.mesh.size(communicator), -1)[0] if into is None else into
        op = self._op(place, "reduce_scatter", communicator, phase, full)
        return self._start(op, _nothing, lambda: part)

    def all_reduce(
        self,
        place: Place,
        communicator: Communicator,
        buffer: torch.Tensor,
        *,
        reduction: str = "sum",  # noqa: ARG002  nothing is reduced
        name: str = "",
        phase: Phase | None = None,
    ) -> Handle:
        """Give the buffer back, as it is."""
        op = self._op(place, "all_reduce", communicator, phase, buffer, name)
        return self._start(op, _nothing, lambda: buffer)


def _nothing() -> None:
    """No work in flight."""


def quiet_context(
    model: Mapping[str, Any], grid: Grid, device: torch.device, *, sequences: int = 1, **options: Any
) -> FourDContext:
    """The context of rank 0 of a grid, alone; `sequences` are those of one micro-step."""
    job = load_job(
        {
            "model": dict(model),
            "machine": "laptop",
            "ranks": grid.ranks,
            "grid": grid.model_dump(),
            "batch": {"sequences": sequences * grid.data * grid.z, "micro_sequences": sequences},
            "precision": "fp32" if device.type == "cpu" else "bf16",
            "recompute": False,
            **options,
        },
        [],
    )
    context = FourDContext.of_job(job, Mesh(grid, 0, grid.coordinates(0), {}, None), device)
    context.collectives = Quiet(context.mesh, context.ops, direct=device.type == "cpu")
    context.gathers.collectives = context.updated.collectives = context.collectives
    return context


def as_text(vocabulary: int, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Draw tokens as often as in text, the k-th with a frequency of 1/k (Zipf): many of them are the same few.

    Adding up the gradients of a token's row takes the longer the more there are.
    """
    return torch.pow(float(vocabulary), torch.rand(shape, device=device)).long().clamp_(1, vocabulary) - 1


class QuietRank:
    """A model on such a rank, with a batch to work on."""

    def __init__(self, context: FourDContext) -> None:
        job = context.job
        self.context = context
        self.trainee = FourDTrainee(context, GPT(context), Optimizer(context, Adam()))
        shape = job.concrete_micro_sequences, job.model.sequence
        window = as_text(job.model.vocabulary, (shape[0], shape[1] + 1), context.device)
        weights = torch.full(shape, 1.0 / (shape[0] * shape[1]), device=context.device)
        self.batch = [MicroBatch(0, window[:, :-1], window[:, 1:], weights)]

    def step(self, listener: Listener | None = None) -> None:
        """Do every op of a step once."""
        self.context.ops.listener = listener
        self.trainee.step(self.batch, 1e-4)
        self.context.ops.listener = None
