"""Goldfish loss: some targets never count, so that no passage can be learnt by heart.

Hans et al. 2024 (arXiv 2406.10209): a target is dropped if a hash of the h tokens before it falls
below 1/k. The same passage is so always masked alike, wherever it occurs and on whichever rank.
Targets with fewer than h tokens before them in their sequence are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.parallel import random


@dataclass(frozen=True)
class Goldfish:
    """Drops one of `k` targets by the `h` tokens before it."""

    k: int = 4
    h: int = 13

    def keeps(self, window: torch.Tensor) -> torch.Tensor:
        """Say which targets count.

        window (sequences, s + 1) int64: inputs and, one further, targets. Returns booleans
        (sequences, s).
        """
        kept = torch.ones_like(window[:, 1:], dtype=torch.bool)
        if window.shape[1] <= self.h:
            return kept
        contexts = window[:, :-1].unfold(1, self.h, 1)  # (sequences, s − h + 1, h)
        state = torch.zeros_like(contexts[..., 0])
        for position in range(self.h):
            state = random.mix(state + contexts[..., position] + 1)
        uniform = (state & 0xFFFFFFFF).double() / 2.0**32
        # the context that ends at input i belongs to the target of input i
        kept[:, self.h - 1 :] = uniform >= 1.0 / self.k
        return kept
