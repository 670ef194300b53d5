"""What gathers and arrivals know of a parallel layer: its weight, and where and how it is cut."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from runtime.parallel.ops import Place
from runtime.weights.shards import Shard


class Cut(Protocol):
    """Where a layer stands, and how its weight is cut."""

    place: Place
    shard: Shard


class CutLayer(Hashable, Protocol):
    """A layer whose weight is a flat shard."""

    weight: torch.nn.Parameter

    @property
    def layout(self) -> Cut:
        """The way it is cut."""
        ...


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a layer in a forward pass."""

    layer: CutLayer
    dtype: torch.dtype
    """What the product is computed in."""
    needs_block: bool
    """A backward pass may follow that needs the weight, for the gradient of the input."""
    order: list[Use] = field(default_factory=list)
    """Uses of the same pass, this one included; empty outside a pass."""
    position: int = 0

    def same_as(self, other: Use) -> bool:
        """Tell whether the same gather serves both."""
        return self.layer is other.layer and self.dtype == other.dtype
