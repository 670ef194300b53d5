"""What the parts of an FSDP step share on a rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.sharded.context import ShardedContext, Sharing
from twin.strategies.fsdp.groups import Groups
from twin.strategies.fsdp.job import FsdpJob, Grid


@dataclass
class FsdpContext(ShardedContext):
    """The context of a job whose ranks divide weights, gradients and optimizer states."""

    job: FsdpJob

    @property
    def grid(self) -> Grid:
        """Who shares what."""
        grid = self.mesh.grid
        assert isinstance(grid, Grid)
        return grid

    @property
    def sharing(self) -> Sharing:
        """Names of the communicators."""
        groups = Groups.of(self.job)
        return Sharing(groups.gather, groups.scatter, groups.data)

    @property
    def reduce_type(self) -> torch.dtype:
        """Of gradients on their way."""
        return self.master_type if self.job.reduce_precision == "fp32" else self.compute_type

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """Ranks that hold different rows."""
        return (self.sharing.scatter,)
