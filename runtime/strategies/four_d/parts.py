"""What is divided over x, and travels over it in parts.

Either what lies between two linears of a block, which the published algorithm repeats on each rank: the partial
products before it are reduce-scattered over x; what comes of a part is gathered for the linear behind it. Or, with
`tensor: 1d`, the residual stream. Whole sequences (or tokens) lie together and travel as they are. Heads and features
are columns: they are copied together before they travel, and apart when they have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase


@dataclass(frozen=True)
class Parts:
    """The ranks of x, each with one part of a tensor (m, n): of its rows, or of its columns."""

    context: FourDContext
    columns: bool = False

    @classmethod
    def of_attention(cls, context: FourDContext, sequences: int) -> Parts | None:
        """Divide attention over so many sequences; None where the job does not, or nothing divides by x.

        What is held out or sampled may come in any number of sequences.
        """
        size, model = context.grid.x, context.job.model
        if context.flat:
            return cls(context, columns=True)
        if size == 1 or not context.job.divide.attention:
            return None
        if sequences % size == 0:
            return cls(context)
        divides = all(heads // context.grid.y % size == 0 for heads in (model.heads, model.key_value_heads))
        return cls(context, columns=True) if divides else None

    @classmethod
    def of_mlp(cls, context: FourDContext, tokens: int) -> Parts | None:
        """Divide the activation of so many tokens; None where the job does not, or they do not divide by x."""
        if context.flat:
            return cls(context, columns=True)
        return cls(context) if context.job.divide.mlp and context.grid.x > 1 and tokens % context.grid.x == 0 else None

    @property
    def size(self) -> int:
        """Parts that there are."""
        return self.context.grid.x

    @property
    def number(self) -> int:
        """The part of this rank."""
        return self.context.mesh.coordinates["x"]

    def scatter(
        self, place: Place, partial: torch.Tensor, widths: Sequence[int], phase: Phase | None = None
    ) -> Callable[[], torch.Tensor]:
        """Sum a partial (m, n) over x; what is returned waits for the part of this rank.

        `widths` are those of the sides that lie in a row, such as queries, keys and values: each has every head's.
        """
        rows, columns = partial.shape
        shape = (rows, columns // self.size) if self.columns else (rows // self.size, columns)
        if self.columns:
            sides = [side.unflatten(1, (self.size, -1)).transpose(0, 1) for side in partial.split(list(widths), 1)]
            partial = self._sorted(place, partial, lambda: torch.cat(sides, 2), phase)
        handle = self.context.collectives.reduce_scatter(place, "x", partial.reshape(-1), phase=phase)
        return lambda: handle.wait().view(shape)

    def gather(
        self, place: Place, part: torch.Tensor, widths: Sequence[int], phase: Phase | None = None
    ) -> torch.Tensor:
        """Gather the parts of all ranks: (m, n)."""
        rows, columns = part.shape
        part = part.contiguous()
        full = self.context.collectives.all_gather(place, "x", part.view(-1), phase=phase).wait()
        if not self.columns:
            return full.view(rows * self.size, columns)
        own = [width // self.size for width in widths]
        parts = [each.split(own, 1) for each in full.view(self.size, rows, columns)]
        return self._sorted(
            place, full, lambda: torch.cat([each[side] for side in range(len(own)) for each in parts], 1), phase
        )

    def vector(self, whole: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Return what of a vector (n,) belongs to the columns of this rank's part."""
        if not self.columns:
            return whole
        return torch.cat([side.view(self.size, -1)[self.number] for side in whole.split(list(widths))])

    def _sorted(
        self, place: Place, moved: torch.Tensor, copy: Callable[[], torch.Tensor], phase: Phase | None
    ) -> torch.Tensor:
        ops = self.context.ops
        return ops.compute(place, "sort", copy, lambda: Memory(2.0 * moved.nbytes, work="copy"), phase=phase)

    @contextmanager
    def sequences(self, count: int) -> Iterator[int]:
        """Let the context speak of this rank's part of so many sequences; how many that are."""
        context, own = self.context, count // self.size
        begin, documents = context.first_sequence, context.documents
        context.first_sequence = begin + self.number * own
        context.documents = None if documents is None else documents.some(self.number * own, own)
        try:
            yield own
        finally:
            context.first_sequence, context.documents = begin, documents
