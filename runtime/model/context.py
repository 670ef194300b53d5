"""What the layers of a model share besides: documents, and tables that are made once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from runtime.model.rotary import Tables, rotary_tables
from runtime.parallel import random
from runtime.parallel.random import Numbers
from runtime.step.context import Context
from twin.description.grid import Axis

MOST_NUMBERS = 8
"""Sets of rows or columns whose random numbers are kept: each block asks for those of a micro-step again."""


@dataclass(frozen=True)
class Documents:
    """What layers know of the documents in the sequences of a micro-step."""

    positions: torch.Tensor
    """(sequences, s) int64: of each token in its document."""
    mask: torch.Tensor
    """(sequences, 1, s, s) in compute precision, added to scores: 0, or -inf across documents and to the future."""
    tables: Tables | None
    """Of rotary positions: cosines (sequences, s, 1, d) and sines (sequences, s, 1, planes)."""

    def some(self, first: int, count: int) -> Documents:
        """Return those of so many of the sequences."""
        own = slice(first, first + count)
        tables = None if self.tables is None else (self.tables[0][own], self.tables[1][own])
        return Documents(self.positions[own], self.mask[own], tables)


@dataclass
class ModelContext(Context):
    """The context of a transformer's layers."""

    rows_over: Axis | None = None
    """The axis whose ranks divide the rows of a plain model's parameters among them; None: each has all."""
    documents: Documents | None = None
    """Of the micro-step at work; none where each sequence is one document."""
    _rotary: dict[int, Tables] = field(default_factory=dict)
    _future: dict[int, torch.Tensor] = field(default_factory=dict)
    _numbers: dict[tuple[range, ...], Numbers] = field(default_factory=dict)

    def rotary(self, length: int) -> Tables:
        """Cosines and sines of rotary positions, in the compute precision; made once for a length."""
        if length not in self._rotary:
            self._rotary[length] = rotary_tables(self.job.model, length, self.device, self.compute_type)
        return self._rotary[length]

    def future(self, length: int) -> torch.Tensor:
        """Tell what attention must not see, (s, s): for each query the keys after it; made once for a length."""
        if length not in self._future:
            self._future[length] = torch.ones(length, length, dtype=torch.bool, device=self.device).triu(1)
        return self._future[length]

    def numbers(self, addresses: tuple[range, ...]) -> Numbers:
        """Random numbers of so many rows or columns of a full tensor; those last asked for are kept."""
        if addresses not in self._numbers:
            while len(self._numbers) >= MOST_NUMBERS:
                del self._numbers[next(iter(self._numbers))]
            each = [torch.arange(one.start, one.stop, device=self.device) for one in addresses]
            self._numbers[addresses] = random.numbers(torch.cat(each))
        return self._numbers[addresses]
