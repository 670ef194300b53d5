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
        self.context.updated.need(self.tokens_shard)  # with which all that is replicated over z comes

        def run() -> torch.Tensor:
            found = rows_of(tokens, self.tokens_shard.local)
            if self.positions_shard is not None:
                table = self.positions_shard.local
                found += table[:length] if documents is None else rows_of(documents.positions, table)
            return found.flatten(0, 1)

        width = self.tokens_shard.shard.local_shape[1]
        size = float(tokens.numel() * width * self.tokens_shard.weight.element_size())
        # read and write the tokens' rows; read the sum and each position's row once, write the sum; positions in
        # documents read and write rows of their own first
        moved = 2 * size
        if self.positions_shard is not None:
            moved += 2 * size + size / tokens.shape[0] if documents is None else 5 * size
        return self.context.ops.compute(self.place, "lookup", run, lambda: Memory(moved, work="embedding/lookup"))

    def scatter_gradient(self, tokens: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add each token's gradient (m, h/G_x) to its row, and each position's to its own."""
        documents = self.context.documents

        def run() -> None:
            table = self.tokens_shard
            values = gradient.to(table.gradient.dtype)
            add_rows(table, tokens, values)
            if self.positions_shard is None:
                return
            if documents is not None:
                add_rows(self.positions_shard, documents.positions, values)
            else:
                self._add_positions(gradient.view(*tokens.shape, -1).sum(0, dtype=values.dtype))

        def describe() -> Memory:
            table, positions = self.tokens_shard, self.positions_shard
            count, wide = gradient.numel(), table.gradient.element_size()
            # widen it, if it is narrow; read it, read and write rows, which begin with zeros
            widening = gradient.nbytes + count * wide if gradient.element_size() < wide else 0
            moved = widening + 3 * count * wide + (0 if table.seen else table.gradient.nbytes)
            if positions is not None and documents is not None:
                moved += 3 * count * wide + (0 if positions.seen else positions.gradient.nbytes)
            elif positions is not None:
                # sum over sequences, and add that to the sum; the first time copy it, and zeros behind
                each = count // tokens.shape[0] * wide
                added = 3 * each if positions.seen else positions.gradient.nbytes + each
                moved += gradient.nbytes + each + added
            return Memory(float(moved), work="embedding/gradient")

        self.context.ops.compute(self.place, "gradient", run, describe, phase="bwd")

    def _add_positions(self, gradient: torch.Tensor) -> None:
        table = self.positions_shard
        assert table is not None
        total = table.local_gradient
        length = gradient.shape[0]
        if table.seen:
            total[:length].add_(gradient)
            return
        total[:length].copy_(gradient)
        total[length:].zero_()
        table.seen = True


def add_rows(table: Parameter, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Add each token's gradient (m, h/G_x) to the row (sequences, s) that it was read from."""
    total = table.local_gradient
    if not table.seen:
        total.zero_()
        table.seen = True
    if total.device.type != "cpu":
        # sorted, not atomic: y ranks hold equal tables and must stay equal
        total.index_put_((rows.reshape(-1),), values, accumulate=True)
    else:
        total.index_add_(0, rows.reshape(-1), values)


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
