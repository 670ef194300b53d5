"""Activation checkpointing of a block: keep its input only, run it again before its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Block = Callable[[torch.Tensor], torch.Tensor]


class Recompute(torch.autograd.Function):
    """Runs a block without a graph; in backward runs it again with one, and differentiates that."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, block: Block, again: Callable[[Block], Block]) -> torch.Tensor:
        """Run the block; `again` wraps how it is run the second time."""
        ctx.save_for_backward(inputs)
        ctx.block, ctx.again = block, again
        with torch.no_grad():
            return block(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        """Run the block again and go backward through it."""
        (inputs,) = ctx.saved_tensors
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            output = ctx.again(ctx.block)(leaf)
        torch.autograd.backward(output, gradient)
        return leaf.grad, None, None
