"""What of a rank's elements trains: everything, or low-rank adapters alone.

Where adapters train, nothing that does is cut over z.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from twin.strategies.four_d.adapters import Adapters, adapters_of
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Shapes


@dataclass(frozen=True)
class Trained:
    """Counts of what has gradients and optimizer states on a rank."""

    job: FourDJob
    shapes: Shapes

    @cached_property
    def adapters(self) -> tuple[Adapters, ...]:
        """Those of one block."""
        found = (adapters_of(self.job, linear) for linear in self.shapes.block_linears(0))
        return tuple(each for each in found if each is not None)

    @property
    def adapter_elements(self) -> int:
        """Elements of all adapters that a rank stores."""
        return self.job.model.layers * sum(each.elements for each in self.adapters)

    @property
    def replicated_elements(self) -> int:
        """Those that are replicated over z."""
        return self.shapes.replicated_elements if self.job.lora is None else self.adapter_elements

    @property
    def elements(self) -> int:
        """All of them."""
        return self.shapes.local_elements if self.job.lora is None else self.adapter_elements

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Places of the elements that weight decay is for, and behind them of those that it is not: vectors."""
        decayed = self.shapes.sharded_elements + self.shapes.table_elements if self.job.lora is None else self.elements
        return tuple((begin, end) for begin, end in ((0, decayed), (decayed, self.elements)) if end > begin)

    @property
    def tied(self) -> bool:
        """Whether a table of tokens has to follow the head that it is tied to."""
        return self.job.model.tied_embeddings and self.job.lora is None

    def bucket_elements(self, layer: int | None) -> int:
        """Elements cut over z of a block, or of the head (None), which buckets of gradients are made of."""
        if self.job.lora is not None:
            return 0
        return self.shapes.head.shard_elements if layer is None else self.shapes.block_shard_elements

    def partial_over(self, axis: str) -> int:
        """Elements of which each rank of an axis has a part of the gradient, to be summed when the step ends."""
        layers = self.job.model.layers
        if self.job.lora is not None:
            return layers * sum(each.partial_over(axis) for each in self.adapters)
        return layers * self.shapes.head_norm_elements if axis == "y" else 0
