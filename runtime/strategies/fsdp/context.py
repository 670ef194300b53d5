"""What the parts of an FSDP step share on a rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.model.context import ModelContext
from twin.schedule.ops import Phase
from twin.strategies.fsdp.groups import Groups
from twin.strategies.fsdp.job import FsdpJob, Grid


@dataclass
class FsdpContext(ModelContext):
    """The context of a job whose ranks divide weights, gradients and optimizer states."""

    job: FsdpJob
    phase: Phase = "fwd"
    """Which pass gathers weights now."""

    def __post_init__(self) -> None:
        self.rows_over = "weights" if self.sharded else None
        super().__post_init__()

    @property
    def grid(self) -> Grid:
        """Who shares what."""
        grid = self.mesh.grid
        assert isinstance(grid, Grid)
        return grid

    @property
    def groups(self) -> Groups:
        """Names of the communicators."""
        return Groups(self.grid)

    @property
    def sharded(self) -> bool:
        """Whether weights are divided at all: on one rank they are not."""
        return self.grid.weights > 1

    @property
    def stored_type(self) -> torch.dtype:
        """FSDP2 rounds what it gathers: a rank's own rows are master weights."""
        return self.master_type if self.sharded else self.compute_type

    @property
    def reduce_type(self) -> torch.dtype:
        """Of gradients on their way."""
        return self.master_type if self.job.reduce_precision == "fp32" else self.compute_type

    @property
    def waits_at_once(self) -> bool:
        """Whether a reduction is waited for where it starts: a CPU has no streams for FSDP2 to go on beside.

        What is only recorded stands for the devices of the job.
        """
        kind = self.device.type if self.initialised else self.job.machine.device.type
        return kind == "cpu"

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """Ranks that hold different rows."""
        return (self.groups.scatter,)
