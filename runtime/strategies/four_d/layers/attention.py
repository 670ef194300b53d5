"""Causal self-attention of one rank's heads, (m, queries + keys + values) → (m, queries): no communication.

* Each head of keys and values serves equally many heads of queries, which are neighbours.

* flash: PyTorch's scaled_dot_product_attention, which picks the device's best kernel.
* plain, fused_softmax: explicit scores, which dropout may then thin out.
* With several documents in a sequence all forms add a mask to the scores (`Documents`), and positions are those in the
  document. PyTorch's kernel then reads the mask and computes every score of the window, those of the future too.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from runtime.model.functions import turned
from runtime.parallel import random
from runtime.parallel.ops import Place
from runtime.parallel.region import Region
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.layers.head_norm import HeadNorms
from twin.description.attention import UNFUSED
from twin.schedule.kernels import Attention, Memory


class Attention4D(torch.nn.Module):
    """Splits qkv into heads, normalises and turns them where the model does, and attends."""

    def __init__(self, context: FourDContext, place: Place) -> None:
        super().__init__()
        model, y = context.job.model, context.grid.y
        self.context, self.place = context, place
        self.heads, self.head_size = model.heads // y, model.head_size
        self.kv_heads = model.key_value_heads // y
        queries, keys, values = (width // y for width in model.qkv_parts)
        self.widths = queries, keys, values
        self.norms = HeadNorms(context, place, self.widths) if model.qk_norm else None
        self.first_head = self.heads * context.mesh.coordinates["y"]
        self.rotary = model.positions == "rotary"

    def forward(self, qkv: torch.Tensor, sequences: int) -> torch.Tensor:
        """Attend within each of the sequences of equal length."""
        context, e = self.context, qkv.element_size()
        length = qkv.shape[0] // sequences
        both = float(qkv.shape[0] * sum(self.widths[:2]) * e)
        if self.norms is not None:
            qkv = self.norms(qkv)
        if self.rotary:
            found = context.documents
            angles = context.angles(length) if found is None or found.angles is None else found.angles

            def turn(packed: torch.Tensor) -> torch.Tensor:
                return self._turn(packed, sequences, angles)

            def moved() -> Memory:
                return Memory(2 * both, work="rotary")

            qkv = Region(context.ops, self.place, "rotary", turn, moved, moved)(qkv)
        form = context.job.attention
        run = self._explicit if form in UNFUSED else self._flash
        fewer = self.kv_heads if self.kv_heads < self.heads else None
        dropped = form in UNFUSED and context.job.dropout > 0 and context.training
        mask = context.documents is not None

        def describe(*, backward: bool = False) -> Attention:
            return Attention(sequences, length, self.heads, self.head_size, form, dropped, backward, e, fewer, mask)

        return Region(
            context.ops,
            self.place,
            "attention",
            lambda packed: run(packed, sequences),
            describe,
            partial(describe, backward=True),
        )(qkv)

    def _heads(self, packed: torch.Tensor, sequences: int) -> tuple[torch.Tensor, ...]:
        """Unpack (m, queries + keys + values) into q, k, v (sequences, heads of each, s, d)."""
        shape = (sequences, packed.shape[0] // sequences, -1, self.head_size)
        return tuple(part.view(shape).transpose(1, 2) for part in packed.split(self.widths, 1))

    def _flash(self, packed: torch.Tensor, sequences: int) -> torch.Tensor:
        q, k, v = self._heads(packed, sequences)
        documents = self.context.documents
        out = torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if documents is None else documents.mask,
            is_causal=documents is None,
            enable_gqa=self.kv_heads < self.heads,
        )
        return out.transpose(1, 2).reshape(packed.shape[0], -1)

    def _explicit(self, packed: torch.Tensor, sequences: int) -> torch.Tensor:
        q, k, v = self._heads(packed, sequences)
        length = q.shape[2]
        if (shared := self.heads // self.kv_heads) > 1:
            k, v = (part.repeat_interleave(shared, 1) for part in (k, v))
        scores = (q @ k.transpose(-1, -2)).mul(1.0 / math.sqrt(self.head_size))
        if (documents := self.context.documents) is not None:
            shares = (scores + documents.mask).softmax(-1)
        else:
            future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            shares = scores.masked_fill(future, -torch.inf).softmax(-1)
        if (drop := self.context.job.dropout) and self.context.training:
            shares = shares * self._kept_scores(sequences, length, q.device) / (1.0 - drop)
        return (shares @ v).transpose(1, 2).reshape(packed.shape[0], -1)

    def _kept_scores(self, sequences: int, length: int, device: torch.device) -> torch.Tensor:
        context = self.context
        stream = random.key(context.job.seed, context.step, self.place.path, "scores")
        sequence = torch.arange(sequences, device=device) + context.first_sequence
        head = torch.arange(self.heads, device=device) + self.first_head
        row = sequence[:, None, None] * context.job.model.heads + head[:, None]
        row = row * length + torch.arange(length, device=device)
        columns = torch.arange(length, device=device)
        keep = random.keep_mask(row.reshape(-1), columns, stream, context.job.dropout)
        return keep.view(sequences, self.heads, length, length)

    def _turn(self, packed: torch.Tensor, sequences: int, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        q, k, v = packed.split(self.widths, 1)
        shape = (sequences, packed.shape[0] // sequences, -1, self.head_size)
        both = [turned(part.view(shape), angles).reshape(part.shape) for part in (q, k)]
        return torch.cat((*both, v), 1)
