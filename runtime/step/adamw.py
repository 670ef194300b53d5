"""PyTorch's fused AdamW as what it is, a kernel over flat tensors.

`torch.optim.AdamW(fused=True)` launches the same one. Its class is not wanted here: its constructor brings the compiler
along, which is a tenth of a rank's start; it knows no meta device; and it keeps for every tensor what flat buffers keep
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from twin.description.train import Adam

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Weights and both moments, alike in shape, type and device."""


@dataclass(frozen=True)
class Alike:
    """Parts that one kernel updates: they decay alike."""

    decay: float
    parts: list[Tensors]
    gradients: list[torch.Tensor]


@torch.no_grad()
def update(
    groups: Sequence[Alike], steps: torch.Tensor, settings: Adam, *, learning_rate: float, stopped: torch.Tensor
) -> None:
    """Update weights and moments in place, and count that.

    `steps` is how many updates there have been: a scalar of 32 bits. Where `stopped` is one and not zero the kernel
    leaves all as it is, as with torch.amp.GradScaler, and the host need not look. Both lie on the parts' device. There
    may be no groups: what a rank owns may be padding alone.
    """
    steps.add_(1)
    for alike in groups:
        weights, first, second = (list(tensors) for tensors in zip(*alike.parts, strict=True))
        # what torch.optim calls; exported under no other name
        torch._fused_adamw_(
            weights,
            alike.gradients,
            first,
            second,
            [],
            [steps] * len(weights),
            lr=learning_rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=alike.decay,
            eps=settings.epsilon,
            amsgrad=False,
            maximize=False,
            found_inf=stopped,
        )
    steps.sub_(stopped)
