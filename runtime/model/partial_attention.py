"""Attention over a part of the keys, and how several such results are one: for sequences that ranks share.

A kernel gives, with each row of its output, the logarithm of the sum of exponentials by which that was divided. By
these two outputs over different keys are weighed into the output over both; and given those of all keys the kernel's
backward pass makes what one part of the keys gives to the gradients (Dao et al. 2022, "FlashAttention").

Queries, keys and values are (sequences, heads, length, head size); keys and values may have fewer heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Facts = tuple[Any, ...]
"""What a kernel on a GPU wants back in its backward pass; PyTorch has no type for it."""


@dataclass(frozen=True)
class Part:
    """Attention of some queries over some keys."""

    out: torch.Tensor
    """(sequences, heads, queries, head size)."""
    sums: torch.Tensor
    """(sequences, heads, queries): logarithms of sums of exponentials, of at least 32 bits."""
    facts: Facts = ()

    def of(self, queries: slice) -> Part:
        """Return that of some of the queries."""
        return Part(self.out[:, :, queries], self.sums[:, :, queries], self.facts)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Part:
    """Attend to all keys; if `causal`, of as many queries each to the keys until its own."""
    k, v = (_for_all_heads(each, q.shape[1]) for each in (k, v))
    if q.device.type == "cuda":
        out, sums, *facts = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        return Part(out, sums, tuple(facts[:6]))
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return Part(out, sums)


def attend_backward(
    gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, whole: Part, *, causal: bool
) -> Gradients:
    """Return what these keys give to the gradients of q, k and v; `whole` is attention over all keys."""
    heads = k.shape[1]
    k, v = (_for_all_heads(each, q.shape[1]) for each in (k, v))
    out = whole.out.to(q.dtype)
    if q.device.type == "cuda":
        back = torch.ops.aten._scaled_dot_product_flash_attention_backward
        cut_q, cut_k, _, _, seed, offset = whole.facts
        lengths = q.shape[2], k.shape[2]
        sums = whole.sums.contiguous()
        found = back(gradient, q, k, v, out, sums, cut_q, cut_k, *lengths, 0.0, causal, seed, offset)
    else:
        back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = back(gradient, q, k, v, out, whole.sums, 0.0, causal)
    of_q, of_k, of_v = found
    return of_q, _of_shared_heads(of_k, heads), _of_shared_heads(of_v, heads)


def merged(one: Part, other: Part) -> Part:
    """Return attention over the keys of both, its output in the type of the sums."""
    kind = one.sums.dtype
    weight = torch.sigmoid(other.sums - one.sums).unsqueeze(-1)
    out = torch.lerp(one.out.to(kind), other.out.to(kind), weight)
    return Part(out, torch.logaddexp(one.sums, other.sums), one.facts)


def _for_all_heads(each: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat heads of keys or values for the neighbours that share them."""
    shared = heads // each.shape[1]
    return each if shared == 1 else each.repeat_interleave(shared, 1)


def _of_shared_heads(gradient: torch.Tensor, heads: int) -> torch.Tensor:
    shared = gradient.shape[1] // heads
    return gradient if shared == 1 else gradient.unflatten(1, (heads, shared)).sum(2)
