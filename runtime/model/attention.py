"""Causal self-attention of one rank's heads, (m, queries + keys + values) → (m, queries): no communication.

* Each head of keys and values serves equally many heads of queries, which are neighbours.
* Queries, keys and values are parts of one tensor until they are normalised or turned; their gradients are
  packed into one again, for the one product that they come from.

* flash: PyTorch's scaled_dot_product_attention, which picks the device's best kernel; or the one of its kernels that
  the job names (`attention_backend.NAMED`).
* plain, fused_softmax: explicit scores, which dropout may then thin out.
* With several documents in a sequence all forms add a mask to the scores (`Documents`), and positions are those in the
  document. PyTorch's kernel then reads the mask and computes every score of the window, those of the future too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch

from runtime.model import rotary
from runtime.model.attention_backend import kernel_of
from runtime.model.context import ModelContext
from runtime.model.elementwise import fused, mask
from runtime.model.explicit_attention import explicit
from runtime.model.kept_attention import KeptAttention
from runtime.parallel.ops import Place
from runtime.parallel.region import Region, unpack
from twin.description.attention import UNFUSED
from twin.schedule import kernels
from twin.schedule.kernels import Memory

Norms = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Normalises queries and keys, (m, width) each, head by head."""


class Attention(torch.nn.Module):
    """Splits qkv into heads, normalises and turns them where the model does, and attends.

    Heads may be shared among `parts` ranks, of which this one is number `part`.
    """

    def __init__(
        self, context: ModelContext, place: Place, norms: Norms | None = None, *, parts: int = 1, part: int = 0
    ) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place, self.norms = context, place, norms
        self.heads, self.head_size = model.heads // parts, model.head_size
        self.kv_heads = model.key_value_heads // parts
        queries, keys, values = (width // parts for width in model.qkv_parts)
        self.widths = queries, keys, values
        self.first_head = self.heads * part
        self.rotary = model.positions == "rotary"

    def forward(self, qkv: torch.Tensor, sequences: int, kept: KeptAttention | None = None) -> torch.Tensor:
        """Attend within each of the sequences of equal length; `kept` is what a block that runs again keeps of it."""
        context, length = self.context, qkv.shape[0] // sequences
        q, k, v = unpack(qkv, self.widths, context.ops, self.place)
        if self.norms is not None:
            q, k = self.norms(q, k)
        if self.rotary:
            found = context.documents
            q, k = self._turn(q, k, context.rotary(length) if found is None or found.tables is None else found.tables)
        if kept is None:
            return self.attend(q, k, v, sequences)
        return kept.attention(self._region(q, k, sequences))(q, k, v)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int) -> torch.Tensor:
        """Map queries, keys and values (m, width) to (m, queries)."""
        return self._region(q, k, sequences)(q, k, v)

    def _region(self, q: torch.Tensor, k: torch.Tensor, sequences: int) -> Region:
        """Describe attention of queries and keys of these shapes."""
        context, e, length = self.context, q.element_size(), q.shape[0] // sequences
        form = context.job.attention
        dropped = form in UNFUSED and context.job.dropout > 0 and context.training
        documents = context.documents
        added = None if documents is None else documents.mask
        keep = self._kept_scores(sequences, length) if dropped else None
        heads, kv_heads = (each.shape[1] // self.head_size for each in (q, k))
        fewer = kv_heads if kv_heads < heads else None

        def run(*parts: torch.Tensor) -> torch.Tensor:
            shape = (sequences, length, -1, self.head_size)
            q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
            if form in UNFUSED:
                future = context.future(length)
                masked = form == "fused_softmax"
                out = explicit(q, k, v, future, keep, context.job.dropout, masked=masked, mask=added)
            else:
                with kernel_of(form) if q.is_cuda else nullcontext():  # they are for GPUs
                    out = torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, attn_mask=added, is_causal=added is None, enable_gqa=fewer is not None
                    )
            return out.transpose(1, 2).reshape(parts[0].shape[0], -1)

        def describe(*, backward: bool = False) -> kernels.Attention:
            shape, masked = (heads, self.head_size), added is not None
            return kernels.Attention(sequences, length, *shape, form, dropped, backward, e, fewer, masked)

        back = partial(describe, backward=True)
        return Region(context.ops, self.place, "attention", run, describe, back)

    def _turn(self, q: torch.Tensor, k: torch.Tensor, tables: rotary.Tables) -> tuple[torch.Tensor, ...]:
        fuses = self.context.job.fused_elementwise
        work = "rotary" if fuses else "rotary/steps"
        run = fused(self.context, rotary.turned, rotary.turned_in_steps)
        moved = rotary.moved((q, k), tables, fused=fuses)
        return rotary.turn((q, k), tables, run, self.context.ops, self.place, lambda: Memory(moved, work=work))

    def _kept_scores(self, sequences: int, length: int) -> torch.Tensor:
        """Mask of the scores (sequences, heads, s, s): a row for each query of each head."""
        context, every = self.context, self.context.job.model.heads
        rows = [
            range(first, first + self.heads * length)
            for sequence in range(context.first_sequence, context.first_sequence + sequences)
            for first in [(sequence * every + self.first_head) * length]
        ]
        keep = mask(context, self.place, "scores", tuple(rows), range(length))
        return keep.view(sequences, self.heads, length, length)
