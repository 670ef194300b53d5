"""What a plain model is made of, and which part of it: strategies that cut layers make their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from runtime.model.attention import Attention
from runtime.model.context import ModelContext
from runtime.model.elementwise import residual
from runtime.model.plain.layers import Embedding, Linear
from runtime.model.plain.norms import HeadNorms, Norm, RmsNorm, norm_of
from runtime.parallel.ops import Place


@dataclass(frozen=True)
class Span:
    """A part of a model: consecutive layers, and its two ends."""

    first: bool
    """It has the embedding."""
    layers: range
    last: bool
    """It has the last norm and the head."""

    @classmethod
    def whole(cls, layers: int) -> Span:
        """All of it."""
        return cls(first=True, layers=range(layers), last=True)


class Layers:
    """Makes layers that are whole on every rank that computes them."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    def linear(
        self, name: str, place: Place, n: int, k: int, *, bias: bool, init: float, also: str | None = None
    ) -> Linear:
        """Make a linear layer of n out- and k in-features; `also` is the other name of a weight that is tied."""
        return Linear(self.context, name, place, n, k, bias=bias, init=init, also=also)

    def norm(self, name: str, place: Place) -> Norm | RmsNorm:
        """Make a norm of the residual stream."""
        return norm_of(self.context, name, place)

    def head_norms(self, place: Place, sides: tuple[nn.Module, nn.Module]) -> HeadNorms:
        """Make the norms of a block's queries and keys."""
        return HeadNorms(self.context, place, sides)

    def attention(self, place: Place, norms: HeadNorms | None) -> Attention:
        """Make a block's attention."""
        return Attention(self.context, place, norms)

    def embedding(self) -> Embedding:
        """Make the tables of tokens and positions."""
        return Embedding(self.context)

    def residual(self, place: Place, name: str, stream: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Add an update (m, h), thinned by dropout, to the residual stream."""
        return residual(self.context, place, name, stream, update)
