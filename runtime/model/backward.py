"""The begin of a backward pass: where logits and their gradient, the largest tensors of a step, are let go.

`logits.backward(gradient)` keeps both until the whole pass is over, since its caller has them. Here nobody has.
"""

from __future__ import annotations

from typing import Any

import torch


def backward_from(held: list[torch.Tensor]) -> None:
    """Go backward from logits and their gradient, which are taken out of `held` and freed as soon as they are read.

    The caller must have no other reference to them.
    """
    gradient, logits = held.pop(), held.pop()
    seed: torch.Tensor = _Seed.apply(logits, [gradient])
    del gradient, logits
    seed.backward()


class _Seed(torch.autograd.Function):
    """A number whose gradient by the logits is known already."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
        ctx.held = held
        return logits.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _seed: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.held.pop(), None
