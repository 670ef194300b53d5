"""Token and position embedding: tables (V, h/G_x) and (s, h/G_x), replicated over y and z.

Tokens come out as (m, h/G_x) without communication; the tables' gradients are summed over z
and data with those of all that is replicated.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.model.functions import INIT
from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from runtime.weights.shards import ParameterSpec
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory


class Embedding4D(torch.nn.Module):
    """Looks up tokens, and adds learned positions if there are any."""

    def __init__(self, context: FourDContext) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place = context, Place("embedding")
        self.tokens_shard = context.store.declare(
            ParameterSpec("embedding.tokens", (model.vocabulary, model.hidden), (None, "x"), decay=True, init=INIT)
        )
        self.positions_shard: Parameter | None = None
        if model.positions == "learned":
            self.positions_shard = context.store.declare(
                ParameterSpec(
                    "embedding.positions", (model.position_rows, model.hidden), (None, "x"), decay=True, init=INIT
                )
            )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (sequences, s) to (sequences · s, h/G_x)."""
        result: torch.Tensor = _Embedding.apply(tokens, self.tokens_shard.weight, self)
        return result

    def lookup(self, tokens: torch.Tensor) -> torch.Tensor:
        """The forward pass proper."""
        length, documents = tokens.shape[1], self.context.documents
        rows_of = torch.nn.functional.embedding

        def run() -> torch.Tensor:
            found = rows_of(tokens, self.tokens_shard.local)
            if self.positions_shard is not None:
                table = self.positions_shard.local
                found += table[:length] if documents is None else rows_of(documents.positions, table)
            return found.flatten(0, 1)

        width = self.tokens_shard.shard.local_shape[1]
        size = float(tokens.numel() * width * self.tokens_shard.weight.element_size())
        # read and write the tokens' rows; read the sum and the positions' rows, write the sum; before that documents'
        # positions read and write rows of their own
        passes = 2 if self.positions_shard is None else 5 if documents is None else 7
        return self.context.ops.compute(
            self.place, "lookup", run, lambda: Memory(passes * size, work="embedding/lookup")
        )

    def scatter_gradient(self, tokens: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add each token's gradient (m, h/G_x) to its row, and each position's to its own."""
        documents = self.context.documents

        def run() -> None:
            add_rows(self.tokens_shard, tokens, gradient)
            if self.positions_shard is None:
                return
            if documents is not None:
                add_rows(self.positions_shard, documents.positions, gradient)
                return
            each = gradient.view(*tokens.shape, -1).sum(0, dtype=self.positions_shard.gradient.dtype)
            gradients_of(self.positions_shard)[: each.shape[0]] += each

        def describe() -> Memory:
            tables = [t for t in (self.tokens_shard, self.positions_shard) if t is not None]
            zeros = sum(table.gradient.nbytes for table in tables if not table.seen)
            # read the gradient, read and write rows; read it again and write its sum, or its own rows
            passes = 3 if self.positions_shard is None else 5 if documents is None else 6
            return Memory(float(passes * gradient.nbytes + zeros), work="embedding/gradient")

        self.context.ops.compute(self.place, "gradient", run, describe, phase="bwd")


def gradients_of(table: Parameter) -> torch.Tensor:
    """Return the sum of a table's gradients, which the first to ask finds at zero."""
    total = table.gradient.view(table.shard.local_shape)
    if not table.seen:
        total.zero_()
        table.seen = True
    return total


def add_rows(table: Parameter, rows: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add each token's gradient (m, h/G_x) to the row (sequences, s) that it was read from."""
    total = gradients_of(table)
    if total.device.type == "cuda":
        # sorted, not atomic: y ranks hold equal tables and must stay equal
        total.index_put_((rows.reshape(-1),), gradient.to(total.dtype), accumulate=True)
    else:
        total.index_add_(0, rows.reshape(-1), gradient.to(total.dtype))


class _Embedding(torch.autograd.Function):
    """Ties `Embedding4D`'s two passes into autograd."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, _weight: torch.Tensor, layer: Embedding4D) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.layer = layer
        return layer.lookup(tokens)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        (tokens,) = ctx.saved_tensors
        ctx.layer.scatter_gradient(tokens, gradient)
        return None, None, None
