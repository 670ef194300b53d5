"""One training step: data in, figures out. How it is made is a strategy's business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.step.context import Context
from runtime.step.optimizer import Optimizer

Say = Callable[[str], None]


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
    documents: torch.Tensor | None = None
    """(sequences, s) int64: the place in its sequence where each token's document begins; with `document_mask`."""


@dataclass(frozen=True)
class StepFigures:
    """What came out, as scalar tensors on the device."""

    loss: torch.Tensor
    """Mean over all targets of the global batch that count."""
    gradient_norm: torch.Tensor
    """Of the full gradient, before clipping."""


class Gradients(Protocol):
    """Gradients that are this rank's own, until they are reduced."""

    def finish(self) -> None:
        """Reduce what is not reduced yet; gradients are complete afterwards."""
        ...


class Trainee(ABC):
    """A model, its optimizer, and how a step is made of them. Nothing here reads a device value back."""

    context: Context
    model: torch.nn.Module
    optimizer: Optimizer
    warm_up_steps: int = 0
    """Steps after which every step does the same ops."""

    def step(self, batch: Sequence[MicroBatch], learning_rate: float) -> StepFigures:
        """Train on one global batch, of which `batch` is this rank's part."""
        self.backward(batch).finish()
        norm = self.optimizer.step(learning_rate)
        self.context.step += 1
        # the loss was summed with the gradients it lies behind
        return StepFigures(self.context.store.loss[0].clone(), norm)

    @abstractmethod
    def backward(self, batch: Sequence[MicroBatch]) -> Gradients:
        """Run all micro-steps, forward and backward."""

    @abstractmethod
    def loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the weighted sum of this replica's token losses, without going backward.

        tokens, targets and weights are (sequences, s), and `documents` is where each token's begins; without it each
        sequence is one. The sum is a scalar.
        """

    @abstractmethod
    def last_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, V) of the tokens after `tokens` (n, s), float32 on the CPU; all ranks call it."""

    @abstractmethod
    def holding(self) -> AbstractContextManager[None]:
        """Keep ready between calls what every forward pass needs, such as gathered weights."""

    def settle(self, wanted: str, known: dict[str, str], *, deterministic: bool, say: Say) -> dict[str, str]:
        """Choose, before training, what is chosen by timing: nothing, where operands are stored as PyTorch has them.

        `known` are the choices of an earlier start.
        """
        del deterministic
        if wanted == "tuned":
            say("train.gemm_modes: tuned is of strategy four_d; operands are stored as PyTorch has them")
        return known
