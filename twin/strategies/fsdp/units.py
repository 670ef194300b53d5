"""What travels together: the parameters of one all-gather, and of one reduction.

FSDP wraps blocks; the older one keeps embeddings, last norm and head in the root, which stays gathered. DeepSpeed
gathers module by module, and never cuts what has fewer than 100,000 elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from twin.description.model import Model
from twin.strategies.fsdp.job import FsdpJob

PERSISTENT_ELEMENTS = 100_000
"""DeepSpeed's `stage3_param_persistence_threshold`."""


@dataclass(frozen=True)
class Unit:
    """Parameters that travel together."""

    name: str
    """Where it stands: a block, `embedding`, `head`, `root`; below a block the linear."""
    elements: int
    keep: bool = False
    """Gathered weights stay from the forward pass to the backward pass."""


@dataclass(frozen=True)
class Units:
    """The units of a job."""

    job: FsdpJob

    @property
    def model(self) -> Model:
        """The job's model."""
        return self.job.model

    @cached_property
    def table(self) -> int:
        """Elements of the embedding tables."""
        return (self.model.vocabulary + self.model.position_rows) * self.model.hidden

    @cached_property
    def last_norm(self) -> int:
        """Elements of the norm before the head."""
        return self.model.hidden * (1 + self.model.norm_biases)

    @cached_property
    def head_weight(self) -> int:
        """Elements of the head, none of its own where it is the table of tokens."""
        return 0 if self.model.tied_embeddings else self.model.vocabulary * self.model.hidden

    @property
    def together(self) -> bool:
        """Whether embedding and head are one unit: in the root, or because they are one matrix."""
        return self.job.flavour == "fsdp1" or (self.model.tied_embeddings and self.job.flavour == "fsdp2")

    @cached_property
    def first(self) -> Unit:
        """What the forward pass gathers first."""
        if self.together:
            return Unit("root", self.table + self.last_norm + self.head_weight, keep=True)
        return Unit("embedding", self.table, keep=not self.job.reshard_after_forward)

    @cached_property
    def last(self) -> Unit | None:
        """What it gathers last and keeps, since the backward pass begins with it; None if the first has it."""
        if self.together:
            return None
        norm = self.last_norm if self.job.flavour == "fsdp2" else 0
        return Unit("head", norm + self.model.vocabulary * self.model.hidden, keep=True)

    def block(self, layer: int) -> tuple[Unit, ...]:
        """Those of a block, in execution order."""
        keep = not self.job.reshard_after_forward
        where = f"block{layer}"
        if self.job.flavour != "deepspeed":
            return (Unit(where, self.model.block_weights + self.model.block_vectors, keep),)
        shapes = self.model.block_linears
        return tuple(
            Unit(f"{where}/{name}", n * k, keep) for name, (n, k) in shapes.items() if n * k >= PERSISTENT_ELEMENTS
        )

    @cached_property
    def persistent(self) -> int:
        """Elements that are on every rank all the time: DeepSpeed's small ones."""
        if self.job.flavour != "deepspeed":
            return 0
        cut = sum(unit.elements for unit in self.block(0)) * self.model.layers
        return self.total - cut - self.table - self.head_weight

    @property
    def total(self) -> int:
        """Elements of the model."""
        return self.model.parameters

    @cached_property
    def largest(self) -> int:
        """Elements of the largest unit that is not kept."""
        return max((unit.elements for unit in self.block(0)), default=0)


def part(elements: int, parts: int) -> int:
    """Elements of one of so many equal parts, padding included."""
    return -(-elements // parts)
