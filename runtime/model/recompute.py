"""Activation checkpointing of a block: keep its input only, run it again before its backward.

Where inputs lie beyond the device the block's comes back first (`runtime.step.activations`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runtime.parallel.differentiate import go_backward
from runtime.step.activations import Leave

Block = Callable[[torch.Tensor], torch.Tensor]


class Recompute(torch.autograd.Function):
    """Runs a block without a graph; in backward runs it again with one, and differentiates that."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, block: Block, again: Callable[[Block], Block], leave: Leave | None
    ) -> torch.Tensor:
        """Run the block; `again` wraps how it is run the second time, `leave` takes its input off the device."""
        ctx.kept = None if leave is None else leave(inputs)
        if leave is None:
            ctx.save_for_backward(inputs)
        ctx.block, ctx.again = block, again
        with torch.no_grad():
            return block(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        """Run the block again and go backward through it."""
        (inputs,) = ctx.saved_tensors if ctx.kept is None else (ctx.kept.back(),)
        ctx.kept = None  # autograd lets go of what it has saved itself, and of nothing else, before all is over
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            output = ctx.again(ctx.block)(leaf)
        go_backward(output, gradient)
        return leaf.grad, None, None, None
