"""Documents within sequences: the mask that attention adds to its scores, and positions that begin anew in each.

Made once in a micro-step, before the embedding; all layers share them. A token sees those of its own document up to
itself, so each document is computed as if it were alone in its sequence. The mask is numbers to be added, since
PyTorch makes such ones of booleans in every call.
"""

from __future__ import annotations

import math

import torch

from runtime.model.context import Documents, ModelContext
from runtime.parallel.ops import Place
from twin.schedule.kernels import Memory
from twin.strategies.work import DOCUMENT_BYTES

PLACE = Place("documents")
COMPARED = 4
"""Bytes for each score beside the mask itself: booleans written, read, written without the future, and read."""


def documents_of(context: ModelContext, begins: torch.Tensor) -> Documents:
    """Make what layers need from `begins` (sequences, s): the place where each token's document begins."""
    sequences, length = begins.shape
    model = context.job.model
    table = context.rotary(length) if model.positions == "rotary" else None

    def run() -> Documents:
        places = torch.arange(length, device=begins.device)
        positions = places - begins
        seen = (places >= begins[:, :, None]).masked_fill_(context.future(length), value=False)
        nothing, never = (begins.new_full((), value, dtype=context.compute_type) for value in (0.0, -math.inf))
        mask = torch.where(seen, nothing, never)
        tables = None if table is None else (table[0][positions], table[1][positions])
        return Documents(positions, mask[:, None], tables)

    def describe() -> Memory:
        scores = float(sequences * length * length)
        # cosines and sines of each token are read from their tables and written
        row = 0 if table is None else sum(part[0].nbytes for part in table)
        turned = 2.0 * begins.numel() * row
        future, whole = length * length, DOCUMENT_BYTES * begins.numel()
        each = COMPARED + context.compute_type.itemsize
        return Memory(scores * each + future + whole + turned, work="documents/mask")

    return context.ops.compute(PLACE, "mask", run, describe)
