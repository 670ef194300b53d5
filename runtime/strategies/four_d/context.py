"""What 4D layers share besides: gathered weights, and how matrix products are stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from runtime.model.functions import rotary_angles
from runtime.step.context import Context
from runtime.strategies.four_d.gathers import WeightGathers
from runtime.strategies.four_d.gemm import Gemms
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.job import FourDJob


@dataclass(frozen=True)
class Documents:
    """What layers know of the documents in the sequences of a micro-step."""

    positions: torch.Tensor
    """(sequences, s) int64: of each token in its document."""
    mask: torch.Tensor
    """(sequences, 1, s, s) in compute precision, added to scores: 0, or -inf across documents and to the future."""
    angles: tuple[torch.Tensor, torch.Tensor] | None
    """Of rotary positions: cosine and sine (sequences, s, d/2)."""


@dataclass
class FourDContext(Context):
    """The context of a job on a 4D grid."""

    job: FourDJob
    documents: Documents | None = None
    """Of the micro-step at work; none where each sequence is one document."""
    gemms: Gemms = field(default_factory=Gemms)
    gathers: WeightGathers = field(init=False)
    _angles: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

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

    def angles(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine (s, d/2) of rotary positions; made once for a length."""
        if length not in self._angles:
            self._angles[length] = rotary_angles(self.job.model, length, self.device)
        return self._angles[length]

    @property
    def optimizer_parts(self) -> int:
        """All data ranks, if the job shards states over data."""
        return self.grid.data if self.job.data_reduction.mode == "sharded" else 1

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """x, y and z cut parameters."""
        return ("x", "y", "z_scatter")
