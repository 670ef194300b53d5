"""The grid of Megatron's parallelism: pipeline × data × context × tensor."""

from __future__ import annotations

from typing import ClassVar

from twin.description.grid import GridSpec
from twin.description.model import Positive


class Grid(GridSpec):
    """Sizes of its axes, outermost first, in Megatron's order of ranks (`tp-cp-dp-pp`, tensor fastest)."""

    batch_axes: ClassVar[tuple[str, ...]] = ("data",)
    streams: ClassVar[tuple[str, ...]] = ("tensor", "context", "data")
    depth_axes: ClassVar[tuple[str, ...]] = ("pipeline",)

    pipeline: Positive = 1
    """Ranks over which layers are divided."""
    data: Positive = 1
    """Replicas, each with sequences of its own."""
    context: Positive = 1
    """Ranks over which each sequence is cut."""
    tensor: Positive = 1
    """Ranks over which each layer's weights are cut; innermost."""
