"""Logits in the precision in which a loss is summed: all at once, or so many tokens at a time.

* Whole: one copy in the wide type (where logits are narrower), which becomes exponentials and then the gradient.
* By tokens (`loss_rows`): exponentials are computed twice, for their sums and for the gradient, of a few rows at a
  time, and the gradient lies where the logits lay. So a vocabulary of 128,256 needs 2 bytes a logit in 16 bits, not 8.
* Columns that are padding count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch

from twin.strategies.work import LossPart


class Scores(Protocol):
    """What a loss asks of logits (m, columns); `top` and sums are (m,), in the wide type."""

    def maximum(self) -> torch.Tensor:
        """Return the largest of each row."""

    def at(self, columns: torch.Tensor) -> torch.Tensor:
        """Return those at columns (m, 1)."""

    def exponentials(self, top: torch.Tensor) -> torch.Tensor:
        """Return the sum over each row of what is e to the difference to its largest."""

    def gradient(
        self, top: torch.Tensor, scale: torch.Tensor, columns: torch.Tensor, change: torch.Tensor
    ) -> torch.Tensor:
        """Return the exponentials times scale (m, 1), with change (m, 1) added at columns (m, 1), as logits are."""

    def moved(self, part: LossPart) -> float:
        """Return the bytes that a part's kernels read and write."""


def make(logits: torch.Tensor, wide: torch.dtype, valid: int, tokens: int | None) -> Scores:
    """Make scores of logits (m, columns), of which the first `valid` columns count, so many tokens at a time or all."""
    return Whole(logits, wide, valid) if tokens is None else ByTokens(logits, wide, valid, tokens)


@dataclass
class Whole:
    """All logits in the wide type."""

    logits: torch.Tensor
    wide: torch.dtype
    valid: int
    scores: torch.Tensor = field(init=False)

    def maximum(self) -> torch.Tensor:
        """Widen all, which takes place here."""
        self.scores = self.logits.to(self.wide)
        if self.valid < self.logits.shape[1]:
            # as good as −∞, and still a number for those who look for numbers that are none
            self.scores[:, self.valid :] = torch.finfo(self.wide).min
        return self.scores.amax(1)

    def at(self, columns: torch.Tensor) -> torch.Tensor:
        """Gather from what is still logits."""
        return self.scores.gather(1, columns)[:, 0]

    def exponentials(self, top: torch.Tensor) -> torch.Tensor:
        """Raise in place."""
        return self.scores.sub_(top[:, None]).exp_().sum(1)

    def gradient(
        self, top: torch.Tensor, scale: torch.Tensor, columns: torch.Tensor, change: torch.Tensor
    ) -> torch.Tensor:
        """Scale in place."""
        del top
        return self.scores.mul_(scale).scatter_add_(1, columns, change).to(self.logits.dtype)

    def moved(self, part: LossPart) -> float:
        """Count widening as read in one type and written in another, where they differ."""
        e, w = self.logits.element_size(), self.wide.itemsize
        cast = e + w if e < w else 0
        each = {"maximum": cast + w, "sum": 5 * w, "gradient": 2 * w + cast, "target": 0}[part]
        return float(self.logits.numel() * each)


@dataclass
class ByTokens:
    """So many rows at a time in the wide type."""

    logits: torch.Tensor
    wide: torch.dtype
    valid: int
    tokens: int

    def maximum(self) -> torch.Tensor:
        """Compare in the logits' own type, in which the largest is the same number."""
        if not self.valid:
            return self.logits.new_full((len(self.logits),), torch.finfo(self.wide).min, dtype=self.wide)
        return self.logits[:, : self.valid].amax(1).to(self.wide)

    def at(self, columns: torch.Tensor) -> torch.Tensor:
        """Gather, then widen."""
        return self.logits.gather(1, columns)[:, 0].to(self.wide)

    def exponentials(self, top: torch.Tensor) -> torch.Tensor:
        """Raise and sum rows that nobody keeps."""
        return torch.cat([self._raised(rows, top).sum(1) for rows in self._rows()])

    def gradient(
        self, top: torch.Tensor, scale: torch.Tensor, columns: torch.Tensor, change: torch.Tensor
    ) -> torch.Tensor:
        """Raise again, and write where the logits lay."""
        for rows in self._rows():
            # a target in padding, or on another rank, stands at a column with no change: any will do
            if self.valid:
                inside = columns[rows].clamp(max=self.valid - 1)
                found = self._raised(rows, top).mul_(scale[rows]).scatter_add_(1, inside, change[rows])
                self.logits[rows, : self.valid] = found
            self.logits[rows, self.valid :] = 0
        return self.logits

    def moved(self, part: LossPart) -> float:
        """Count every pass over rows that are widened."""
        e, w = self.logits.element_size(), self.wide.itemsize
        each = {"maximum": e, "sum": e + 6 * w, "gradient": 2 * e + 8 * w, "target": 0}[part]
        return float(self.logits.numel() * each)

    def _rows(self) -> Iterator[slice]:
        for first in range(0, len(self.logits), self.tokens):
            yield slice(first, first + self.tokens)

    def _raised(self, rows: slice, top: torch.Tensor) -> torch.Tensor:
        widened = self.logits[rows, : self.valid].to(self.wide, copy=True)
        return widened.sub_(top[rows, None]).exp_()
