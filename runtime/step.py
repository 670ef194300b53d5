"""One training step: forward, loss and backward of every micro-step; reduce; clip; update.

Data in, figures out: which sequences, at which learning rate. Nothing here reads a device value
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime.context import Context
from runtime.model import GPT, Block
from runtime.optimizer import Optimizer
from runtime.reduction import Reduction


@dataclass(frozen=True)
class MicroBatch:
    """What a rank works on in one micro-step."""

    first_sequence: int
    """Place of the first sequence in the order of all sequences ever trained on."""
    tokens: torch.Tensor
    """(sequences, s) int64."""
    targets: torch.Tensor
    """(sequences, s) int64."""
    weights: torch.Tensor
    """(sequences, s): 1 / (targets of the global batch), or 0 where a target does not count."""


@dataclass(frozen=True)
class StepFigures:
    """What came out, as scalar tensors on the device."""

    loss: torch.Tensor
    """Mean over all targets of the global batch that count."""
    gradient_norm: torch.Tensor
    """Of the full gradient, before clipping."""


class Trainee:
    """A model, its optimizer, and how a step is made of them."""

    def __init__(self, context: Context, model: GPT, optimizer: Optimizer) -> None:
        self.context, self.model, self.optimizer = context, model, optimizer
        self._bounds: dict[int | None, int] = {None: model.head.weight_shard.stop}
        for block in model.blocks:
            assert isinstance(block, Block)
            self._bounds[block.layer] = block.mlp_down.weight_shard.stop

    def step(self, batch: Sequence[MicroBatch], learning_rate: float) -> StepFigures:
        """Train on one global batch, of which `batch` is this rank's part."""
        self.backward(batch).finish()
        norm = self.optimizer.step(learning_rate)
        self.context.step += 1
        # the loss was summed with the gradients it lies behind
        return StepFigures(self.context.store.loss[0].clone(), norm)

    def backward(self, batch: Sequence[MicroBatch]) -> Reduction:
        """Run all micro-steps; gradients are this rank's until the reduction is finished."""
        context, store = self.context, self.context.store
        store.begin_step()
        reduction = Reduction(context, self._bounds)
        self.model.block_done = reduction.block_done
        for index, micro in enumerate(batch):
            reduction.last_micro_step = index == len(batch) - 1
            context.first_sequence = micro.first_sequence
            with context.ops.micro_step(index):
                loss = self.model.loss(micro.tokens, micro.targets, micro.weights, backward=True)
                store.loss.add_(loss)
                reduction.end_of_backward()
        return reduction
