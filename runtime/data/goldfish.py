"""Goldfish loss: some targets never count, so that no passage can be learnt by heart.

Hans et al. 2024 (arXiv 2406.10209): a target is dropped if a hash of the h tokens before it falls
below 1/k. The same passage is so always masked alike, wherever it occurs and on whichever rank.
Targets with fewer than h tokens before them in their sequence are kept; where documents that share a sequence are
told apart (`document_mask`), in their document, so that one is masked alike whichever stands before it.

Masks, by name:

* `hash`: that; the order of the h tokens matters, and the target itself does not decide.
* `hash_table`: as the paper's published code does it: the product of h tokens of which the target is the last,
  modulo 1,000,003, looks up a number in a table of uniform ones. Their order is lost, a token 0 makes all products
  equal, and so do enough even ones (64 factors of two are 0 in 64 bits: 13 spaces of a byte vocabulary).
* `static`: every k-th target of a sequence. A passage that begins elsewhere is masked otherwise.
* `random`: one of k, drawn anew whenever a sequence comes: over the epochs every target counts. For comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from runtime.parallel import random
from twin.description.train import Mask

HASHED: tuple[Mask, ...] = ("hash", "hash_table")
"""Masks that depend on the tokens before a target, so on where its document begins."""
TABLE_SIZE, TABLE_SEED = 1_000_003, 2_971_215_073
"""Of the published code's table; it is drawn on the CPU here, so that masks are alike on all devices."""


@dataclass(frozen=True)
class Goldfish:
    """Drops one of `k` targets by the `h` tokens before it, or by another mask."""

    k: int = 4
    h: int = 13
    mask: Mask = "hash"
    seed: int = 0
    """Of the mask `random`."""
    separator: int | None = None
    """The token between documents of text. It is no part of the document that it begins."""

    def keeps(self, window: torch.Tensor, first_sequence: int = 0, begins: torch.Tensor | None = None) -> torch.Tensor:
        """Say which targets count.

        window (sequences, s + 1) int64: inputs and, one further, targets; the first of them is the so-manieth that
        is ever trained on. begins (sequences, s) int64: the place where each input's document begins; without it a
        sequence is one. Returns booleans (sequences, s).
        """
        kept = self._in_sequence(window, first_sequence)
        if begins is None or self.mask not in HASHED:
            return kept
        return kept | (self._tokens_so_far(window, begins) < self.h)

    def _tokens_so_far(self, window: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        """Count the tokens of its document up to each input, itself included: (sequences, s)."""
        counted = torch.arange(begins.shape[1], device=begins.device) - begins + 1
        if self.separator is None:
            return counted
        # a document that begins at the edge of a sequence may lack the separator that others have before it
        return counted - (window[:, :-1].gather(1, begins) == self.separator).long()

    def _in_sequence(self, window: torch.Tensor, first_sequence: int) -> torch.Tensor:
        targets = window[:, 1:]
        kept = torch.ones_like(targets, dtype=torch.bool)
        if self.mask == "random":
            rows, columns = (torch.arange(size, device=window.device) for size in kept.shape)
            return random.keep_mask(first_sequence + rows, columns, random.key(self.seed, "goldfish"), 1.0 / self.k)
        if self.mask == "static":
            kept[:, self.k - 1 :: self.k] = False
        elif self.mask == "hash" and window.shape[1] > self.h:
            # the context that ends at input i belongs to the target of input i
            kept[:, self.h - 1 :] = self._of_context(window[:, :-1].unfold(1, self.h, 1)) >= 1.0 / self.k
        elif self.mask == "hash_table" and window.shape[1] > self.h:
            products = targets.unfold(1, self.h, 1).prod(-1) % TABLE_SIZE  # int64, which wraps around
            kept[:, self.h - 1 :] = _table(window.device)[products] >= 1.0 / self.k
        return kept

    def _of_context(self, contexts: torch.Tensor) -> torch.Tensor:
        """Hash contexts (sequences, s − h + 1, h) to numbers in [0, 1)."""
        state = torch.zeros_like(contexts[..., 0])
        for position in range(self.h):
            state = random.mix(state + contexts[..., position] + 1)
        return (state & 0xFFFFFFFF).double() / 2.0**32


@cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(TABLE_SEED)).to(device)
