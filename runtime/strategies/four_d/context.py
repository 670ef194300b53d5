"""What 4D layers share besides: gathered weights, and how matrix products are stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from runtime.model.rotary import Tables, rotary_tables
from runtime.parallel import random
from runtime.parallel.random import Numbers
from runtime.step.context import Context
from runtime.strategies.four_d.gathers import WeightGathers
from runtime.strategies.four_d.gemm import Gemms
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.job import FourDJob

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


@dataclass
class FourDContext(Context):
    """The context of a job on a 4D grid."""

    job: FourDJob
    documents: Documents | None = None
    """Of the micro-step at work; none where each sequence is one document."""
    gemms: Gemms = field(default_factory=Gemms)
    gathers: WeightGathers = field(init=False)
    _rotary: dict[int, Tables] = field(default_factory=dict)
    _future: dict[int, torch.Tensor] = field(default_factory=dict)
    _numbers: dict[tuple[range, ...], Numbers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        overlap = self.job.overlap
        self.gathers = WeightGathers(
            self.collectives,
            depth=overlap.prefetch_depth if overlap.all_gather else None,
            most_in_flight=self.job.scatters_in_flight,
            compute_type=self.compute_type,
            scatter_type=self.master_type if self.job.communication_precision.scatters == "fp32" else self.compute_type,
        )

    @property
    def grid(self) -> Grid:
        """Sizes of the four axes."""
        grid = self.mesh.grid
        assert isinstance(grid, Grid)
        return grid

    @property
    def tied(self) -> bool:
        """Whether the table of tokens has to follow the head that it is tied to: where neither trains it need not."""
        return self.job.model.tied_embeddings and self.job.lora is None

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

    @property
    def optimizer_parts(self) -> int:
        """All data ranks, if the job shards states over data."""
        return self.grid.data if self.job.data_reduction.mode == "sharded" else 1

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """x, y and z cut parameters."""
        return ("x", "y", "z_scatter")
