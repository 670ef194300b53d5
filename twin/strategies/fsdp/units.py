"""What travels together: the parameters of one all-gather, and of one reduction.

FSDP wraps blocks; the older one keeps embeddings, last norm and head in the root, which stays gathered. DeepSpeed
gathers module by module, and never cuts what has fewer than 100,000 elements. FSDP2 divides the rows of each parameter,
and pads them where they do not divide: that travels too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from twin.description.model import Model
from twin.strategies.fsdp.job import FsdpJob

Shapes = tuple[tuple[int, int], ...]
"""Rows and columns of parameters; a vector has one column."""

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
    shapes: Shapes = ()
    """Of its parameters, where their rows are divided one parameter at a time."""

    def padded(self, parts: int) -> int:
        """Elements, with the rows that pad each parameter to so many equal parts."""
        if not self.shapes:
            return self.elements
        return sum(part(rows, parts) * parts * columns for rows, columns in self.shapes)


@dataclass(frozen=True)
class Units:
    """The units of a job."""

    job: FsdpJob

    @property
    def model(self) -> Model:
        """The job's model."""
        return self.job.model

    @cached_property
    def tensor(self) -> int:
        """Ranks that share each layer."""
        return self.job.concrete_grid.tensor

    @cached_property
    def vocabulary(self) -> int:
        """Rows of a rank's table of tokens, and of its head."""
        return part(self.model.vocabulary, self.tensor)

    @cached_property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Out- and in-features of a block's linears: one after the other is divided by the former and by the latter."""
        return {
            name: (n, k // self.tensor) if index % 2 else (n // self.tensor, k)
            for index, (name, (n, k)) in enumerate(self.model.block_linears.items())
        }

    @cached_property
    def vectors(self) -> int:
        """Elements of a block's vectors; biases of what is divided by its out-features are divided too."""
        return self.model.block_vectors - sum(
            n - self.linears[name][0] for name, (n, _) in self.model.block_linears.items() if self.model.has_bias(name)
        )

    @cached_property
    def table(self) -> int:
        """Elements of the embedding tables."""
        return (self.vocabulary + self.model.position_rows) * self.model.hidden

    @cached_property
    def last_norm(self) -> int:
        """Elements of the norm before the head."""
        return self.model.hidden * (1 + self.model.norm_biases)

    @cached_property
    def head_weight(self) -> int:
        """Elements of the head, none of its own where it is the table of tokens."""
        return 0 if self.model.tied_embeddings else self.vocabulary * self.model.hidden

    @property
    def together(self) -> bool:
        """Whether embedding and head are one unit: in the root, or because they are one matrix."""
        return self.job.flavour == "fsdp1" or (self.model.tied_embeddings and self.job.flavour == "fsdp2")

    @cached_property
    def first(self) -> Unit:
        """What the forward pass gathers first."""
        if self.together:
            shapes = self._shapes(*self._tables, *self._last_vectors)
            return Unit("root", self.table + self.last_norm + self.head_weight, keep=True, shapes=shapes)
        keep = not self.job.reshard_after_forward
        return Unit("embedding", self.table, keep, self._shapes(*self._tables))

    @cached_property
    def last(self) -> Unit | None:
        """What it gathers last and keeps, since the backward pass begins with it; None if the first has it."""
        if self.together:
            return None
        norm = self.last_norm if self.job.flavour == "fsdp2" else 0
        shapes = self._shapes(*self._last_vectors, (self.model.vocabulary, self.model.hidden))
        return Unit("head", norm + self.vocabulary * self.model.hidden, keep=True, shapes=shapes)

    def _shapes(self, *shapes: tuple[int, int]) -> Shapes:
        """Shapes of parameters, where they matter."""
        return shapes if self.job.flavour == "fsdp2" else ()

    @property
    def _tables(self) -> Shapes:
        rows = (self.model.vocabulary, self.model.position_rows)
        return tuple((each, self.model.hidden) for each in rows if each)

    @property
    def _last_vectors(self) -> Shapes:
        return ((self.model.hidden, 1),) * (1 + self.model.norm_biases)

    @cached_property
    def _of_block(self) -> Shapes:
        """Shapes of a block's parameters."""
        model = self.model
        matrices = tuple(model.block_linears.values())
        biases = tuple((n, 1) for name, (n, _) in model.block_linears.items() if model.has_bias(name))
        return self._shapes(*matrices, *biases, *2 * self._last_vectors, *((model.head_size, 1),) * 2 * model.qk_norm)

    def block(self, layer: int) -> tuple[Unit, ...]:
        """Those of a block, in execution order."""
        keep = not self.job.reshard_after_forward
        where = f"block{layer}"
        if self.job.flavour != "deepspeed":
            return (Unit(where, self.model.block_weights + self.model.block_vectors, keep, self._of_block),)
        return tuple(
            Unit(f"{where}/{name}", n * k, keep)
            for name, (n, k) in self.linears.items()
            if n * k >= PERSISTENT_ELEMENTS
        )

    @cached_property
    def persistent(self) -> int:
        """Elements that are on every rank all the time: DeepSpeed's small ones."""
        if self.job.flavour != "deepspeed":
            return 0
        cut = sum(unit.elements for unit in self.block(0)) * self.model.layers
        return self.total - cut - self.table - self.head_weight

    @cached_property
    def total(self) -> int:
        """Elements of the model, or of a rank's share of its layers."""
        block = sum(n * k for n, k in self.linears.values()) + self.vectors
        return self.table + self.model.layers * block + self.last_norm + self.head_weight

    def own(self, parts: int) -> int:
        """Elements that one of so many ranks has of the model, padding included."""
        if self.job.flavour != "fsdp2":
            return part(self.total, parts)
        last = () if self.last is None else (self.last,)
        units = [self.first, *last, *self.block(0) * self.model.layers]
        return int(sum(unit.padded(parts) for unit in units)) // parts

    def spans(self, parts: int) -> tuple[tuple[int, int], ...]:
        """Places, among the elements that one of so many ranks has, of matrices, and behind them of vectors.

        Only matrices decay. Of FSDP2, which knows shapes.
        """
        last = () if self.last is None else (self.last,)
        shapes = [shape for unit in (self.first, *last, *self.block(0) * self.model.layers) for shape in unit.shapes]
        decayed = sum(part(rows, parts) * columns for rows, columns in shapes if columns > 1)
        return (0, decayed), (decayed, self.own(parts))

    @cached_property
    def largest(self) -> int:
        """Elements of the largest unit that is not kept."""
        return max((unit.elements for unit in self.block(0)), default=0)


def part(elements: int, parts: int) -> int:
    """Elements of one of so many equal parts, padding included."""
    return -(-elements // parts)
