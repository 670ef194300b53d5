"""The ranks of a job as those see them who hold parameters: data and context ranks together divide weights."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PrivateAttr

from twin.description.grid import Axis, GridSpec
from twin.description.model import Positive
from twin.strategies.megatron.groups import GATHER, REPLICATE, SCATTER, everyone
from twin.strategies.megatron.job import MegatronJob

PIPELINE = "pipeline"
ALONG: dict[str, Axis] = {GATHER: "weights", SCATTER: "weights", REPLICATE: "data"}
"""Axes of communicators whose names begin with that under which the twin books their time."""


class Ranks(GridSpec):
    """Sizes of the axes, outermost first, in the order of ranks of torchtitan's mesh.

    Besides its axes it knows three of ranks that are some of another axis's, or all: `context`, neighbours among those
    that divide weights; `shard`, those that divide them and see other sequences; `everyone`.
    """

    batch_axes: ClassVar[tuple[str, ...]] = ("data", "shard")
    depth_axes: ClassVar[tuple[str, ...]] = ("pipeline",)

    pipeline: Positive = 1
    data: Positive = 1
    """Ranks that hold the same parts of weights."""
    weights: Positive = 1
    """Ranks that divide weights."""
    tensor: Positive = 1

    _context: int = PrivateAttr(default=1)
    _everyone: str = PrivateAttr(default="everyone")

    @classmethod
    def of(cls, job: MegatronJob) -> Ranks:
        """Make those of a job."""
        grid = job.concrete_grid
        sharers = grid.data * grid.context
        found = cls(
            pipeline=grid.pipeline, data=sharers // job.weight_parts, weights=job.weight_parts, tensor=grid.tensor
        )
        found._context, found._everyone = grid.context, everyone(job)
        return found

    @property
    def everyone(self) -> str:
        """The communicator of all ranks."""
        return self._everyone

    @property
    def streams(self) -> tuple[str, ...]:  # type: ignore[override]  # what it is called depends on the grid
        """Names of the communicators."""
        return (self._everyone, PIPELINE, REPLICATE, "shard", GATHER, SCATTER, "context", "tensor")

    @property
    def replicated_over(self) -> Axis:
        """The axis along which all ranks hold the same parameters."""
        return "data"

    def along(self, communicator: str) -> Axis:
        """Return the axis whose ranks a communicator joins."""
        if communicator == self._everyone:
            return "everyone"
        return ALONG.get(communicator) or super().along(communicator)

    def size(self, axis: Axis) -> int:
        """Return the size of an axis, or of ranks that are some of another one's."""
        derived = {"context": self._context, "shard": self.weights // self._context, "everyone": self.ranks}
        return derived[axis] if axis in derived else super().size(axis)

    def inner(self, axis: Axis) -> int:
        """Return the stride between ranks along an axis."""
        derived = {"context": self.tensor, "shard": self.tensor * self._context, "everyone": 1}
        return derived[axis] if axis in derived else super().inner(axis)

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """Coordinates of a rank, those of other ways to see it included."""
        axes = (*self.axes, "shard", "context", "everyone")
        return {axis: rank // self.inner(axis) % self.size(axis) for axis in axes}
