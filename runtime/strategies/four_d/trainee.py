"""One training step of the 4D algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch

from runtime.parallel.ops import Place
from runtime.step.optimizer import Optimizer
from runtime.step.trainee import MicroBatch, Say, StepFigures, Trainee
from runtime.strategies.four_d.block import Block
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.halves import loss_of_halves
from runtime.strategies.four_d.model import GPT
from runtime.strategies.four_d.reduction import Reduction
from runtime.strategies.four_d.tied import tie
from runtime.strategies.four_d.tuning import settle
from runtime.weights.store import Parameter

GENERATE = Place("generate")


class FourDTrainee(Trainee):
    """The step of the 4D algorithm: forward, loss and backward of every micro-step; reduce; clip; update."""

    context: FourDContext
    model: GPT

    def __init__(self, context: FourDContext, model: GPT, optimizer: Optimizer) -> None:
        self.context, self.model, self.optimizer = context, model, optimizer
        last: dict[int | None, Parameter] = {None: model.head.weight_shard}
        for block in model.blocks:
            assert isinstance(block, Block)
            last[block.layer] = block.mlp_down.weight_shard
        self._bounds: dict[int | None, int] = {layer: 0 if p.frozen else p.stop for layer, p in last.items()}

    def backward(self, batch: Sequence[MicroBatch]) -> Reduction:
        """Run all micro-steps; gradients are this rank's until the reduction is finished."""
        context, store, halves = self.context, self.context.store, self.context.job.overlap.halves
        store.begin_step()
        context.updated.start()
        reduction = Reduction(context, self._bounds)
        self.model.block_done = reduction.block_done
        for index, micro in enumerate(batch):
            reduction.last_micro_step = index == len(batch) - 1
            context.first_sequence = micro.first_sequence
            with context.ops.micro_step(index, tuple(micro.tokens.shape)):
                of_model = partial(loss_of_halves, self.model) if halves else partial(self.model.loss, backward=True)
                loss = of_model(micro.tokens, micro.targets, micro.weights, micro.documents)
                store.loss.add_(loss)
                with context.ops.in_half(1 if halves else None):
                    reduction.end_of_backward()
        return reduction

    def step(self, batch: Sequence[MicroBatch], learning_rate: float) -> StepFigures:
        """Train on one global batch, of which `batch` is this rank's part."""
        figures = super().step(batch, learning_rate)
        updated = self.context.updated
        updated.stale = not self.context.shares_at_once
        if self.context.tied:
            updated.gather_head()
            tie(self.context)
        return figures

    def loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the weighted sum of this replica's token losses."""
        self.context.updated.complete()
        return self.model.loss(tokens, targets, weights, documents, backward=False)

    def last_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the next tokens' logits; the vocabulary is gathered over y."""
        context, length = self.context, tokens.shape[1]
        context.updated.complete()
        logits: torch.Tensor = (
            self.model(tokens)[length - 1 :: length].float().T.contiguous()
        )  # (vocabulary here, sequences)
        if context.grid.y > 1:
            gathered = context.collectives.all_gather(GENERATE, "y", logits.view(-1)).wait()
            logits = gathered.view(-1, logits.shape[1])
        return logits[: context.job.model.vocabulary].T.cpu()

    def holding(self) -> AbstractContextManager[None]:
        """Keep gathered weights."""
        return self.context.gathers.holding()

    def settle(self, wanted: str, known: dict[str, str], *, deterministic: bool, say: Say) -> dict[str, str]:
        """Choose how the operands of products are stored."""
        return settle(self.context, self.model, wanted, known, deterministic=deterministic, say=say)
