"""What 4D layers share besides: gathered weights, and how matrix products are stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.model.context import ModelContext
from runtime.strategies.four_d.gathers import WeightGathers
from runtime.strategies.four_d.gemm import Gemms
from runtime.strategies.four_d.updated import UpdatedWeights
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.job import FourDJob


@dataclass
class FourDContext(ModelContext):
    """The context of a job on a 4D grid."""

    job: FourDJob
    gemms: Gemms = field(init=False)
    gathers: WeightGathers = field(init=False)
    updated: UpdatedWeights = field(init=False)
    half: int | None = None
    """The half of a micro-step at work, where its sequences are taken in two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gemms = Gemms(self.products)
        overlap = self.job.overlap
        self.updated = UpdatedWeights(self.collectives, self.store)
        self.gathers = WeightGathers(
            self.collectives,
            self.updated,
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
    def flat(self) -> bool:
        """Whether the linears of blocks are cut over x and y together (`tensor: 1d`)."""
        return self.job.tensor == "1d" and self.grid.x > 1

    @property
    def tied(self) -> bool:
        """Whether the table of tokens has to follow the head that it is tied to: where neither trains it need not."""
        return self.job.model.tied_embeddings and self.job.lora is None

    @property
    def optimizer_parts(self) -> int:
        """All data ranks, if the job shards states over data."""
        return self.grid.data if self.job.data_reduction.sharded else 1

    @property
    def shares_at_once(self) -> bool:
        """Unless what was updated is gathered beside the next forward pass."""
        return not self.job.gathers_ahead

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """x, y and z cut parameters."""
        return ("x", "y", "z_scatter")
