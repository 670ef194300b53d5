"""Local sizes: what one rank holds and works on.

Letters: t tensor ranks, c context ranks, b sequences of a micro-step, s tokens of a sequence.
"""

from __future__ import annotations

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
    def block(self) -> int:
        """Elements of a block on a rank."""
        columns = sum(linear.n for linear in self.linears.values() if linear.bias and linear.column)
        return sum(linear.elements for linear in self.linears.values()) + columns + self.replicated

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
