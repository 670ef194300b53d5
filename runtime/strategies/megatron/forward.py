"""Forward passes alone, one stage after the other: for losses on held-out text, and for the next token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from runtime.model.plain import PlainGPT
from runtime.strategies.megatron.context import MegatronContext
from twin.strategies.megatron.orders import stage_of
from twin.strategies.megatron.place import Stage


def forward(
    context: MegatronContext, parts: Sequence[tuple[Stage, PlainGPT]], tokens: torch.Tensor
) -> torch.Tensor | None:
    """Map tokens (n, s) to this rank's part of the logits (n · s, V/t), where the last stage is; None elsewhere."""
    job = context.job
    shape = tokens.numel(), job.model.hidden
    ranks = {
        stage_of(job.order, rank, chunk, context.ranks.pipeline, job.chunks): rank
        for rank in range(context.ranks.pipeline)
        for chunk in range(job.chunks)
    }
    here = context.mesh.place("pipeline")
    before, training = context.sequences, context.training
    context.sequences, context.training = tokens.shape[0], False
    found = tokens
    for part, model in parts:
        if not part.first and (source := ranks[part.number - 1]) != here:
            found = torch.empty(shape, dtype=context.compute_type, device=context.device)
            dist.recv(found, group=context.mesh.groups["pipeline"], group_src=source)
        found = model(found, sequences=tokens.shape[0])
        if not part.last and (target := ranks[part.number + 1]) != here:
            dist.send(found, group=context.mesh.groups["pipeline"], group_dst=target)
    context.sequences, context.training = before, training
    return found if parts[-1][0].last else None
