"""Local sizes: what one rank holds and works on.

Letters: t tensor ranks, c context ranks, b sequences of a micro-step, s tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from twin.strategies.megatron.grid import Grid
from twin.strategies.megatron.job import MegatronJob


@dataclass(frozen=True)
class Linear:
    """One linear as a rank sees it: column-parallel with a part of the outputs, row-parallel with one of the inputs."""

    name: str
    n: int
    """Outputs of this rank."""
    k: int
    """Inputs of this rank."""
    column: bool
    bias: bool

    @property
    def elements(self) -> int:
        """Weight elements of this rank."""
        return self.n * self.k


Shape = tuple[int, int]
"""Rows and columns of a parameter on a tensor rank; a vector has one column."""


def padded(shapes: Iterable[Shape], parts: int) -> int:
    """Elements of parameters whose rows are cut into so many equal parts, the last ones padded.

    >>> padded([(5, 2), (4, 1)], 4)
    20
    """
    return sum(-(-rows // parts) * parts * columns for rows, columns in shapes)


@dataclass(frozen=True)
class Local:
    """Local sizes of a job on its grid."""

    job: MegatronJob

    @cached_property
    def grid(self) -> Grid:
        """The job's grid."""
        return self.job.concrete_grid

    @cached_property
    def sequences(self) -> int:
        """Letter b."""
        return self.job.concrete_micro_sequences

    @cached_property
    def length(self) -> int:
        """Tokens of each sequence on a context rank: s/c."""
        return self.job.model.sequence // self.grid.context

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-step on a context rank."""
        return self.sequences * self.length

    @cached_property
    def residual_tokens(self) -> int:
        """Those whose residual stream is on one tensor rank."""
        return self.tokens // self.grid.tensor if self.job.sequence_parallel else self.tokens

    @cached_property
    def residual_elements(self) -> int:
        """Elements of the residual stream."""
        return self.residual_tokens * self.job.model.hidden

    @cached_property
    def whole_bytes(self) -> float:
        """Bytes of the residual stream of all tensor ranks together: 2·b·s·h/c in 16 bits."""
        return float(self.tokens * self.job.model.hidden * self.job.element_bytes)

    @cached_property
    def message_bytes(self) -> float:
        """Bytes of an activation on its way between stages, from one rank."""
        cut = self.job.sequence_parallel or self.job.splits_messages
        return self.whole_bytes / (self.grid.tensor if cut else 1)

    @cached_property
    def heads(self) -> int:
        """Heads of queries."""
        return self.job.model.heads // self.grid.tensor

    @cached_property
    def kv_heads(self) -> int:
        """Heads of keys, and of values: one at least, where there are fewer than tensor ranks."""
        return max(1, self.job.model.key_value_heads // self.grid.tensor)

    @cached_property
    def grouped(self) -> int | None:
        """Heads of keys where they are fewer than those of queries, as an attention kernel is told."""
        return None if self.kv_heads == self.heads else self.kv_heads

    @cached_property
    def qkv(self) -> int:
        """Width of queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.job.model.head_size

    @cached_property
    def turned(self) -> int:
        """Elements of a token's queries and keys."""
        return (self.heads + self.kv_heads) * self.job.model.head_size

    @cached_property
    def mlp(self) -> int:
        """Width inside the MLP, after its activation."""
        return self.job.model.mlp_hidden // self.grid.tensor

    @cached_property
    def mlp_up(self) -> int:
        """Width before it: with SwiGLU a gate and an up part."""
        return self.job.model.block_linears["mlp_up"][0] // self.grid.tensor

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the vocabulary, padded to a multiple of the tensor ranks."""
        return -(-self.job.model.vocabulary // self.grid.tensor)

    @cached_property
    def linears(self) -> dict[str, Linear]:
        """Those of a block, in execution order, by name."""
        model, h = self.job.model, self.job.model.hidden
        sizes = {
            "qkv": (self.qkv, h, True),
            "projection": (h, self.heads * model.head_size, False),
            "mlp_up": (self.mlp_up, h, True),
            "mlp_down": (h, self.mlp, False),
        }
        return {name: Linear(name, n, k, column, model.has_bias(name)) for name, (n, k, column) in sizes.items()}

    @cached_property
    def keys_alone(self) -> Linear:
        """The product of keys: every other one of queries, keys, values, projection, gate, up and down."""
        width = self.kv_heads * self.job.model.head_size
        return Linear("qkv", width, self.job.model.hidden, column=True, bias=self.job.model.has_bias("qkv"))

    @cached_property
    def gate_alone(self) -> Linear:
        """One of the two products before SwiGLU."""
        return Linear("mlp_up", self.mlp, self.job.model.hidden, column=True, bias=self.job.model.has_bias("mlp_up"))

    @cached_property
    def head(self) -> Linear:
        """The output head: column-parallel."""
        return Linear("head", self.vocabulary, self.job.model.hidden, column=True, bias=False)

    @cached_property
    def replicated(self) -> int:
        """Elements of a block that every tensor rank holds: norms, and biases of row-parallel linears."""
        model = self.job.model
        rows = sum(linear.n for linear in self.linears.values() if linear.bias and not linear.column)
        return rows + 2 * model.hidden * (1 + model.norm_biases) + 2 * model.head_size * model.qk_norm

    @cached_property
    def linear_elements(self) -> int:
        """Elements of a block's linears on a rank, without their biases."""
        return sum(linear.elements for linear in self.linears.values())

    @cached_property
    def block(self) -> int:
        """Elements of a block on a rank."""
        columns = sum(linear.n for linear in self.linears.values() if linear.bias and linear.column)
        return self.linear_elements + columns + self.replicated

    @cached_property
    def block_shapes(self) -> tuple[Shape, ...]:
        """Parameters of a block on a rank."""
        vectors = [(linear.n, 1) for linear in self.linears.values() if linear.bias]
        return (*((linear.n, linear.k) for linear in self.linears.values()), *vectors, *self._norm_shapes())

    def _norm_shapes(self) -> list[Shape]:
        model = self.job.model
        each = 1 + model.norm_biases
        return [(model.hidden, 1)] * 2 * each + [(model.head_size, 1)] * 2 * model.qk_norm

    @cached_property
    def table_shapes(self) -> tuple[Shape, ...]:
        """Of the embedding; one that is tied is the head's where both are on one rank."""
        model = self.job.model
        tokens = () if model.tied_embeddings and self.job.ends_together else ((self.vocabulary, model.hidden),)
        return (*tokens, *([(model.position_rows, model.hidden)] if self.positions else []))

    @cached_property
    def head_shapes(self) -> tuple[Shape, ...]:
        """Of the last norm and the head."""
        model = self.job.model
        return ((self.vocabulary, model.hidden), *[(model.hidden, 1)] * (1 + model.norm_biases))

    def partial(self, first: bool, layers: int, last: bool) -> list[Shape]:
        """Parameters of a stage that tensor ranks hold in common and have a part each of the gradient."""
        model = self.job.model
        heads = [(model.head_size, 1)] * 2 * model.qk_norm * layers
        if not self.job.sequence_parallel:
            return heads
        biases = [(linear.n, 1) for linear in self.linears.values() if linear.bias and not linear.column]
        norms = [(model.hidden, 1)] * (1 + model.norm_biases)
        positions = [(model.position_rows, model.hidden)] if first and self.positions else []
        return [*heads, *(biases + 2 * norms) * layers, *positions, *(norms if last else [])]

    @cached_property
    def table(self) -> int:
        """Elements of the table of tokens on a rank."""
        return self.vocabulary * self.job.model.hidden

    @cached_property
    def positions(self) -> int:
        """Elements of the table of positions, which is on every rank."""
        return self.job.model.position_rows * self.job.model.hidden

    @cached_property
    def last_norm(self) -> int:
        """Elements of the norm before the head."""
        return self.job.model.hidden * (1 + self.job.model.norm_biases)
