"""Layers that tensor ranks share: linears cut by their outputs or inputs, the table of tokens by its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from runtime.model.context import ModelContext
from runtime.model.elementwise import residual
from runtime.model.functions import INIT
from runtime.model.narrow_sums import lookup
from runtime.model.plain import Layers
from runtime.model.plain.layers import Embedding, Linear, bias_gradient, declare
from runtime.model.plain.norms import HeadNorms, Norm, RmsNorm, norm_of
from runtime.parallel.ops import Place
from runtime.parallel.region import Region
from runtime.strategies.megatron.context import MegatronContext
from runtime.strategies.megatron.exchange import ContextAttention
from runtime.strategies.megatron.gradients import Sums
from runtime.strategies.megatron.tensor import enter, gathered, leave
from runtime.strategies.megatron.zigzag import taken
from twin.description.grid import Axis
from twin.schedule.kernels import Memory
from twin.strategies.megatron.attention import CONTEXT
from twin.strategies.megatron.linear import TENSOR

ROWS = {"projection": "residual1", "mlp_down": "residual2"}
"""Linears whose inputs are cut, and the residual sum that each goes into."""


class TensorLayers(Layers):
    """Makes layers of which each tensor rank has a part."""

    context: MegatronContext

    def __init__(self, context: MegatronContext, sums: Sums) -> None:
        super().__init__(context)
        self.sums = sums

    @property
    def partial(self) -> Axis | None:
        """Tensor ranks have a part each of what tokens say of a norm, if they have a part of the tokens."""
        return TENSOR if self.context.split and self.context.job.sequence_parallel else None

    def linear(
        self, name: str, place: Place, n: int, k: int, *, bias: bool, init: float, also: str | None = None
    ) -> Linear:
        """Make a linear layer of n out- and k in-features, cut as its name says."""
        kind = Row if name.rpartition(".")[2] in ROWS else Column
        return kind(self, name, place, n, k, bias=bias, init=init, also=also)

    def norm(self, name: str, place: Place) -> Norm | RmsNorm:
        """Make a norm of the residual stream."""
        return norm_of(self.context, name, place, self.partial)

    def head_norms(self, place: Place, sides: tuple[nn.Module, nn.Module]) -> HeadNorms:
        """Make the norms of a block's queries and keys, of which each tensor rank has some heads."""
        return HeadNorms(self.context, place, sides, TENSOR if self.context.split else None)

    def attention(self, place: Place, norms: HeadNorms | None) -> ContextAttention:
        """Make a block's attention, of this rank's heads."""
        ranks = self.context.ranks.tensor
        return ContextAttention(self.context, place, norms, parts=ranks, part=self.context.tensor_place)

    def embedding(self) -> Embedding:
        """Make the tables of tokens and positions."""
        return Table(self) if self.context.split else Whole(self.context)

    def residual(self, place: Place, name: str, stream: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Add an update, thinned by dropout, to this rank's part of the residual stream."""
        context = self.context
        if needless(context, name):
            result: torch.Tensor = _Unneeded.apply(stream, update)
            return result
        return residual(context, place, name, stream, update, rows=self._rows())

    def _rows(self) -> tuple[range, ...] | None:
        """Places of this rank's tokens among all ever trained on."""
        context, length = self.context, self.context.job.model.sequence
        if not (context.scatters or context.shares_sequences):
            return None
        own = context.places(length, scattered=True)
        first = [(context.first_sequence + i) * length for i in range(context.sequences)]
        return tuple(range(begin + each.start, begin + each.stop) for begin in first for each in own)


def needless(context: MegatronContext, name: str) -> bool:
    """Tell whether nothing needs a block's last sum: it is computed again for the backward pass, which it ends.

    What dropout left out of it is needed.
    """
    last = name == "residual2" and context.ops.forward_phase == "recompute"
    return last and not context.job.dropout


class _Unneeded(torch.autograd.Function):
    """A sum that nobody reads."""

    @staticmethod
    def forward(_ctx: Any, stream: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        del update
        return torch.empty_like(stream)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient, gradient


class Cut(Linear):
    """A linear layer of which each tensor rank has a part."""

    def __init__(self, layers: TensorLayers, name: str, place: Place, n: int, k: int, **facts: Any) -> None:
        self.layers, self.name = layers, name
        super().__init__(layers.context, name, place, n, k, **facts)

    def taken(self, weight_gradient: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """Compute the weight's gradient now or later; None where the sums over micro-steps have it."""
        return self.layers.sums.take(self.name, self.place, weight_gradient)


class Column(Cut):
    """One whose outputs are cut: of queries, keys and values each, of gate and up each."""

    def declare(
        self, context: ModelContext, name: str, n: int, k: int, *, bias: bool, init: float, also: str | None
    ) -> None:
        """Announce weight and bias."""
        model, kind = context.job.model, name.rpartition(".")[2]
        parts: tuple[int, ...] = ()
        if kind == "qkv":
            parts = model.qkv_parts
        elif kind == "mlp_up" and n > model.mlp_hidden:
            parts = (n // 2, n // 2)
        declare(context, f"{name}.weight", n, k, axes=(TENSOR, None), parts=parts, init=init, also=also)
        if bias:
            declare(context, f"{name}.bias", n, axes=(TENSOR,), parts=parts)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (m, k) to this rank's part of (m, n)."""
        return super().forward(enter(self.layers.context, self.place, inputs))


class Row(Cut):
    """One whose inputs are cut; its bias is added to the complete sum."""

    def declare(
        self, context: ModelContext, name: str, n: int, k: int, *, bias: bool, init: float, also: str | None
    ) -> None:
        """Announce weight and bias."""
        declare(context, f"{name}.weight", n, k, axes=(None, TENSOR), init=init, also=also)
        if bias:
            declare(context, f"{name}.bias", n, partial=self.layers.partial)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map this rank's part of (m, k) to (m, n)."""
        context = self.layers.context
        skip = needless(context, self._sum)
        if not context.split:
            return self.product(inputs, self.bias, skip=skip)
        parts = self.product(inputs, None, skip=skip)
        whole: torch.Tensor
        whole = _Shaped.apply(parts, context, self.place) if skip else leave(context, self.place, parts)
        if self.bias is None:
            return whole
        added: torch.Tensor = _Bias.apply(whole, self.bias, self)
        return added

    @property
    def _sum(self) -> str:
        return ROWS[self.name.rpartition(".")[2]]

    def add(self, whole: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Add the bias, as a part of the block's residual sum."""
        context = self.layers.context
        if needless(context, self._sum):
            return whole.view_as(whole)
        block = Place(self.place.path.rpartition("/")[0], self.place.layer)
        moved = Memory(2.0 * whole.nbytes, work="bias")
        return context.ops.compute(block, f"{self._sum}_bias", lambda: whole + bias, lambda: moved)


class _Bias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, bias: torch.Tensor, layer: Row) -> torch.Tensor:
        ctx.layer = layer
        return layer.add(whole, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer: Row = ctx.layer
        return gradient, bias_gradient(layer.ops, layer.place, gradient), None


class _Shaped(torch.autograd.Function):
    """What `leave` would give, of which nobody reads the numbers; backward it is `leave`'s."""

    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, context: MegatronContext, place: Place) -> torch.Tensor:
        ctx.context, ctx.place, ctx.scatters = context, place, context.scatters
        rows = parts.shape[0] // (context.ranks.tensor if context.scatters else 1)
        return parts.new_empty(rows, parts.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (gathered(ctx.context, ctx.place, gradient, "bwd") if ctx.scatters else gradient), None, None


class Whole(Embedding):
    """Looks up all of the vocabulary; positions are those of this rank's tokens."""

    context: MegatronContext

    def rows(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Return the rows of the positions of so many tokens."""
        if not self.context.shares_sequences:
            return super().rows(positions, length)
        return taken(positions, self.context.places(length * self.context.ranks.size(CONTEXT)), 0)


class Table(Embedding):
    """Looks up this rank's part of the vocabulary; positions are added to the sum."""

    def __init__(self, layers: TensorLayers) -> None:
        nn.Module.__init__(self)
        context = layers.context
        model = context.job.model
        self.context, self.place = context, Place("embedding")
        self.cut = context
        if not model.tied_embeddings:
            declare(context, "embedding.tokens", model.vocabulary, model.hidden, axes=(TENSOR, None), init=INIT)
        if model.positions == "learned":
            rows, h = model.position_rows, model.hidden
            declare(context, "embedding.positions", rows, h, init=INIT, partial=layers.partial)
        self.tokens: nn.Parameter
        self.positions: nn.Parameter | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (sequences, s) to this rank's part of (sequences · s, h)."""
        stream = leave(self.cut, self.place, self._looked_up(tokens))
        return stream if self.positions is None else self._with_positions(stream, tokens.shape[1], self.positions)

    def _looked_up(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.tokens.shape[0]
        local = tokens.reshape(-1) - rows * self.cut.tensor_place
        elsewhere = (local < 0) | (local >= rows)

        def run(table: torch.Tensor) -> torch.Tensor:
            return lookup(local.clamp(0, rows - 1), table).masked_fill(elsewhere[:, None], 0.0)

        size = float(tokens.numel() * self.tokens.shape[1] * self.tokens.element_size())
        table = float(self.tokens.nbytes)
        return Region(
            self.context.ops,
            self.place,
            "lookup",
            run,
            lambda: Memory(2 * size, work="embedding/lookup"),
            lambda: Memory(size + table, work="embedding/gradient"),
            backward_name="gradient",
        )(self.tokens)

    def _with_positions(self, stream: torch.Tensor, length: int, positions: torch.Tensor) -> torch.Tensor:
        """Add the rows of this rank's places to each sequence."""
        whole = length * self.cut.ranks.size(CONTEXT) if self.cut.shares_sequences else length
        own = self.cut.places(whole, scattered=True)
        part = sum(map(len, own))
        size, table = float(stream.nbytes), float(positions.nbytes)

        def run(stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            found = stream.view(-1, part, stream.shape[1]) + taken(rows, own, 0)
            # the same memory in another shape, but no view, of which FSDP2 warns
            flat: torch.Tensor = torch.ops.aten._unsafe_view(found, list(stream.shape))
            return flat

        return Region(
            self.context.ops,
            self.place,
            "positions",
            run,
            lambda: Memory(2 * size + size * part / stream.shape[0], work="embedding/lookup"),
            lambda: Memory(size + table, work="embedding/gradient"),
        )(stream, positions)
