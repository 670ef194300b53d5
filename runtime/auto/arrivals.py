"""Weight gradients on their way: reduce-scatters in flight until the end of the backward pass (ORS).

A layer's product does not take the weight itself but a *token* of it: the same numbers, behind a
node of the graph that waits for the layer's reduce-scatters and passes their sum on to `.grad`, by
z: the mean of the replicas that they came from.
Autograd runs what was made last first. The tokens of a pass are made before anything else of it, so all
waiting comes after all products; and since it is part of the graph, a gradient that was not
asked for (`torch.autograd.grad`, a loss that is thrown away) is never left behind in `.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from runtime.auto.use import CutLayer, Use
from runtime.parallel.collectives import Handle


@dataclass(eq=False)
class Token:
    """Stands for a weight in the graph; `inbox` has a reduce-scatter for each use of it."""

    weight: torch.Tensor
    inbox: dict[Use, Handle]

    def post(self, use: Use, handle: Handle) -> torch.Tensor:
        """Hand in a reduce-scatter; returns what to give autograd in place of the gradient."""
        # the same graph may be differentiated twice, and the first time without an arrival
        if (before := self.inbox.pop(use, None)) is not None:
            before.wait()
        self.inbox[use] = handle
        return self.weight.new_zeros(1).expand_as(self.weight)


@dataclass
class Arrivals:
    """The tokens of the pass that is running."""

    overlap: bool
    _tokens: dict[CutLayer, Token] = field(default_factory=dict)

    def begin(self, expected: Sequence[Use]) -> None:
        """Make the tokens of a pass, given what is expected to run in it."""
        self._tokens.clear()
        if self.overlap and torch.is_grad_enabled():
            for use in expected:
                if use.layer not in self._tokens and use.layer.weight.requires_grad:
                    self._tokens[use.layer] = make_token(use.layer)

    def end(self) -> None:
        """Forget the tokens; graphs keep those they need."""
        self._tokens.clear()

    def token(self, layer: CutLayer) -> Token | None:
        """Return the token to compute with; None if gradients are not to be in flight."""
        if not (self.overlap and layer.weight.requires_grad):
            return None
        return self._tokens.get(layer) or make_token(layer)


def make_token(layer: CutLayer) -> Token:
    """Make a token of a layer's weight."""
    inbox: dict[Use, Handle] = {}
    return Token(_Arrive.apply(layer.weight, inbox, layer.layout.shard.grid.size("z")), inbox)


class _Arrive(torch.autograd.Function):
    """The weight forward; what has been handed in backward."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, inbox: dict[Use, Handle], z: int) -> torch.Tensor:
        ctx.inbox, ctx.z = inbox, z
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        first, *others = (handle.wait() for handle in ctx.inbox.values())
        ctx.inbox.clear()
        for other in others:
            first = first + other
        return first.div_(ctx.z), None, None
