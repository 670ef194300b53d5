"""PyTorch's fused AdamW as what it is, a kernel over flat tensors.

`torch.optim.AdamW(fused=True)` launches the same one. Its class is not wanted here: its constructor brings the compiler
along, which is a tenth of a rank's start; it knows no meta device; and it keeps for every tensor what flat buffers keep
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from twin.description.train import Adam

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Weights and both moments, alike in shape, type and device."""


@torch.no_grad()
def update(
    parts: Sequence[Tensors],
    gradients: Sequence[torch.Tensor],
    step: torch.Tensor,
    settings: Adam,
    *,
    learning_rate: float,
    decay: float,
    stopped: torch.Tensor,
) -> None:
    """Update weights and moments in place, each part by its gradient.

    `step` is the number of this update, counted from one: a scalar of 32 bits. Where `stopped` is one and not zero the
    kernel leaves all as it is, as with torch.amp.GradScaler, and the host need not look. Both lie on the parts' device.
    """
    if not parts:  # what a rank owns may be padding alone
        return
    weights, first, second = (list(tensors) for tensors in zip(*parts, strict=True))
    # what torch.optim calls; exported under no other name
    torch._fused_adamw_(
        weights,
        list(gradients),
        first,
        second,
        [],
        [step] * len(weights),
        lr=learning_rate,
        beta1=settings.beta1,
        beta2=settings.beta2,
        weight_decay=decay,
        eps=settings.epsilon,
        amsgrad=False,
        maximize=False,
        found_inf=stopped,
    )
