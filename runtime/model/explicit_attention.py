"""Causal attention with explicit scores, which dropout may thin out; q (sequences, heads, s, d).

Each kernel reads and writes the whole matrix of scores, masked half or not.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from runtime.model.elementwise import thinned


def explicit(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    future: torch.Tensor,
    keep: torch.Tensor | None,
    drop: float,
    *,
    masked: bool,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend to all but `future` (s, s); `keep` (sequences, heads, s, s) is dropout's mask.

    With `masked` the product scales and masks. `mask` (sequences, 1, s, s), numbers that are added to the scores,
    stands for `future` where it is given. k and v may have fewer heads. Returns (sequences, heads, s, d).
    """
    length = q.shape[2]
    if (shared := q.shape[1] // k.shape[1]) > 1:
        k, v = (part.repeat_interleave(shared, 1) for part in (k, v))
    scale = 1.0 / math.sqrt(q.shape[3])
    if mask is not None:
        shares = (q @ k.transpose(-1, -2)).mul(scale).add(mask).softmax(-1)
    elif masked:
        hidden = torch.zeros(1, length, length, dtype=q.dtype, device=q.device).masked_fill_(future, -torch.inf)
        scores = torch.baddbmm(hidden, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=scale)
        shares = scores.softmax(-1).view(*q.shape[:2], length, length)
    else:
        scores = (q @ k.transpose(-1, -2)).mul(scale)
        shares = scores.masked_fill(future, -torch.inf).softmax(-1)
    if keep is not None:
        shares = _Thinned.apply(shares, keep, drop)
    return shares @ v


class _Thinned(torch.autograd.Function):
    """Dropout with a mask that is there already: one kernel each way."""

    @staticmethod
    def forward(ctx: Any, shares: torch.Tensor, keep: torch.Tensor, drop: float) -> torch.Tensor:
        ctx.save_for_backward(keep)
        ctx.drop = drop
        return thinned(shares, keep, drop)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return thinned(gradient, keep, ctx.drop), None, None
