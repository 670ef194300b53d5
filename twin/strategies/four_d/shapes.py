"""Local sizes: what one rank holds and works on, for a job on its grid.

Letters: m tokens of this (data, z) coordinate in one micro-step; n and k the out- and
in-features of a linear; G_c and G_o the sizes of its contraction and output axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from twin.description.library import CollectiveKind
from twin.strategies.four_d.grid import Axis, Grid
from twin.strategies.four_d.job import FourDJob

Sum = tuple[CollectiveKind, Axis]
"""A collective that sums, and its axis."""


@dataclass(frozen=True)
class Linear:
    """One 4D linear layer as one rank sees it (section 2 of the algorithm).

    Weight `W[n_o, k_c]`; a normal layer contracts over x and produces over y, a transposed one
    the other way round.
    """

    name: str
    layer: int | None
    n_local: int
    k_local: int
    transposed: bool
    contraction_size: int
    output_size: int
    z: int
    divided: bool = False
    """Whether what lies between it and its partner is divided over x: outputs of a normal layer are reduce-scattered
    over x, inputs of a transposed one gathered."""
    packed: bool = False
    """Whether columns travel over x (heads, or features of the residual stream), whose numbers lie apart: they are
    copied together before they are sent, and apart when they have come."""
    flat: bool = False
    """Whether it is cut over x and y together: a normal layer by its out-features, a transposed one by its
    in-features, with the residual stream gathered over x before and reduce-scattered behind."""

    @property
    def contraction_axis(self) -> Axis:
        """The axis whose ranks hold partial outputs."""
        return "y" if self.transposed else "x"

    @property
    def output_axis(self) -> Axis:
        """The axis over which outputs are split and input gradients are partial."""
        return "x" if self.transposed else "y"

    @property
    def gathers_input(self) -> bool:
        """Whether its input is gathered over x: what was divided, or a part of the residual stream."""
        return not self.transposed if self.flat else self.divided and self.transposed

    @property
    def gathers_gradient(self) -> bool:
        """Whether the gradient of its output is gathered over x."""
        return self.transposed if self.flat else self.divided and not self.transposed

    @property
    def output_sums(self) -> tuple[Sum, ...]:
        """How partial outputs are summed, one collective after the other."""
        if self.flat:
            return _through_x(self.contraction_size) if self.transposed else ()
        scattered = self.divided and not self.transposed
        return _over(self.contraction_axis, self.contraction_size, scattered=scattered)

    @property
    def gradient_sums(self) -> tuple[Sum, ...]:
        """How partial input gradients are summed, one collective after the other."""
        if self.flat:
            return () if self.transposed else _through_x(self.output_size)
        return _over(self.output_axis, self.output_size, scattered=self.divided and self.transposed)

    @property
    def bias_elements(self) -> int:
        """Elements of its bias, if it has one, on a rank."""
        return self.n_local // self.output_size if self.flat and self.transposed else self.n_local

    @property
    def gathered_elements(self) -> int:
        """Elements of the weight gathered over z, padded to a multiple of z."""
        return -(-self.n_local * self.k_local // self.z) * self.z

    @property
    def shard_elements(self) -> int:
        """Elements of the weight that this rank stores."""
        return self.gathered_elements // self.z


def _over(axis: Axis, size: int, *, scattered: bool) -> tuple[Sum, ...]:
    """Sum over one axis, if that has several ranks: each keeps all, or its part."""
    return (("reduce_scatter" if scattered else "all_reduce", axis),) if size > 1 else ()


def _through_x(y: int) -> tuple[Sum, ...]:
    """Sum over x and y together: over x each rank keeps its part, which is then summed over y."""
    scatter: Sum = ("reduce_scatter", "x")
    return (scatter,) if y == 1 else (scatter, ("all_reduce", "y"))


@dataclass(frozen=True)
class Unit:
    """Weights that one collective over z carries: those of one linear or of a whole block."""

    name: str
    """Where its ops are, such as `mlp_up` or `weights` below a block."""
    linears: tuple[Linear, ...]
    """In execution order."""

    @property
    def gathered_elements(self) -> int:
        """Elements of the gathered weights, each padded to a multiple of z."""
        return sum(linear.gathered_elements for linear in self.linears)

    @property
    def shard_elements(self) -> int:
        """Elements of the weights that a rank stores."""
        return sum(linear.shard_elements for linear in self.linears)


@dataclass(frozen=True)
class AttentionPart:
    """The sequences and heads that one rank attends to."""

    sequences: int
    heads: int
    kv_heads: int | None
    """Heads of keys and values, where they are fewer than those of queries."""

    def divided(self, x: int, *, heads: bool) -> AttentionPart:
        """Return a part of x: of the sequences, or of the heads."""
        if not heads:
            return AttentionPart(self.sequences // x, self.heads, self.kv_heads)
        return AttentionPart(self.sequences, self.heads // x, None if self.kv_heads is None else self.kv_heads // x)


@dataclass(frozen=True)
class Shapes:
    """Local sizes of a job on a grid."""

    job: FourDJob
    halves: int = 1
    """Parts of a micro-step's sequences, of which this is one."""

    @cached_property
    def grid(self) -> Grid:
        """The job's grid."""
        return self.job.concrete_grid

    @cached_property
    def sequences(self) -> int:
        """Sequences of one micro-step, or of a half of it, on one rank."""
        return self.job.concrete_micro_sequences // self.halves

    @cached_property
    def tokens(self) -> int:
        """Letter m: tokens of one micro-step on one rank."""
        return self.sequences * self.job.model.sequence

    @cached_property
    def hidden_x(self) -> int:
        """Local width of the residual stream."""
        return self.job.model.hidden // self.grid.x

    @cached_property
    def heads_y(self) -> int:
        """Local attention heads."""
        return self.job.model.heads // self.grid.y

    @cached_property
    def kv_heads_y(self) -> int | None:
        """Local heads of keys and values, where they are fewer than those of queries."""
        model = self.job.model
        return None if model.key_value_heads == model.heads else model.key_value_heads // self.grid.y

    @cached_property
    def turned_y(self) -> int:
        """Local elements of a token's queries and keys, whole heads."""
        return sum(self.job.model.qkv_parts[:2]) // self.grid.y

    @cached_property
    def mlp_y(self) -> int:
        """Local width inside the MLP, after its activation."""
        return self.job.model.mlp_hidden // self.grid.y

    @cached_property
    def mlp_up_y(self) -> int:
        """Local width before the MLP's activation: with SwiGLU a gate and an up part."""
        return self.job.model.block_linears["mlp_up"][0] // self.grid.y

    @cached_property
    def vocabulary_y(self) -> int:
        """Local vocabulary rows of the head, padded to a multiple of y."""
        return -(-self.job.model.vocabulary // self.grid.y)

    @cached_property
    def attention(self) -> AttentionPart:
        """What a rank attends to: all sequences with its heads, or its part of them over x."""
        whole = AttentionPart(self.sequences, self.heads_y, self.kv_heads_y)
        return whole.divided(self.parts_of_attention, heads=self.divides_heads)

    @cached_property
    def flat(self) -> bool:
        """Whether the linears of blocks are cut over x and y together."""
        return self.job.tensor == "1d" and self.grid.x > 1

    @cached_property
    def parts_of_attention(self) -> int:
        """Ranks of x among which what is between qkv and projection is divided."""
        return self.grid.x if self.job.divide.attention or self.flat else 1

    @cached_property
    def parts_of_mlp(self) -> int:
        """Ranks of x among which what is between MLP up and MLP down is divided."""
        return self.grid.x if self.job.divide.mlp or self.flat else 1

    @property
    def divides_heads(self) -> bool:
        """Whether attention is divided by heads: where linears are cut so, or sequences do not divide by x."""
        return self.flat or self.sequences % self.parts_of_attention > 0

    def _linear(self, name: str, layer: int | None, n: int, k: int, *, transposed: bool) -> Linear:
        c, o = (self.grid.y, self.grid.x) if transposed else (self.grid.x, self.grid.y)
        if self.flat and layer is not None:
            n, k = (n, k // self.grid.x // c) if transposed else (n // self.grid.x // o, k)
            return Linear(name, layer, n, k, transposed, c, o, self.grid.z, packed=True, flat=True)
        parts = {"qkv": self.parts_of_attention, "projection": self.parts_of_attention, "head": 1}
        divided = parts.get(name, self.parts_of_mlp) > 1
        packed = divided and "mlp" not in name and self.divides_heads
        return Linear(name, layer, -(-n // o), k // c, transposed, c, o, self.grid.z, divided, packed)

    def block_linears(self, layer: int) -> tuple[Linear, ...]:
        """The four linears of a block, in execution order: normal and transposed by turns."""
        return tuple(
            self._linear(name, layer, n, k, transposed=bool(index % 2))
            for index, (name, (n, k)) in enumerate(self.job.model.block_linears.items())
        )

    def gather_units(self, linears: tuple[Linear, ...]) -> tuple[Unit, ...]:
        """Divide a block's linears into what travels together over z."""
        if self.job.gather_unit == "block":
            return (Unit("weights", linears),)
        return tuple(Unit(linear.name, (linear,)) for linear in linears)

    @cached_property
    def head(self) -> Linear:
        """The output head, a normal layer."""
        model = self.job.model
        return self._linear("head", None, model.vocabulary, model.hidden, transposed=False)

    @cached_property
    def head_unit(self) -> Unit:
        """The output head travels alone."""
        return Unit(self.head.name, (self.head,))

    @cached_property
    def largest_unit_elements(self) -> int:
        """Elements of the largest gather unit of a block."""
        units = self.gather_units(self.block_linears(0))
        return max(unit.gathered_elements for unit in units)

    @cached_property
    def block_shard_elements(self) -> int:
        """Weight elements of one block that a rank stores."""
        return sum(linear.shard_elements for linear in self.block_linears(0))

    @cached_property
    def block_gathered_elements(self) -> int:
        """Weight elements of one block gathered over z."""
        return sum(linear.gathered_elements for linear in self.block_linears(0))

    @cached_property
    def sharded_elements(self) -> int:
        """All stored elements of weights that are split over z."""
        return self.job.model.layers * self.block_shard_elements + self.head.shard_elements

    @cached_property
    def block_replicated_elements(self) -> int:
        """Elements of one block's vectors (norms, biases), which are replicated over z."""
        model = self.job.model
        biases = sum(linear.bias_elements for linear in self.block_linears(0) if model.has_bias(linear.name))
        return 2 * self.hidden_x * (1 + model.norm_biases) + biases + self.head_norm_elements

    @property
    def head_norm_elements(self) -> int:
        """Elements of one block's norms of queries and keys."""
        return 2 * self.job.model.head_size * self.job.model.qk_norm

    @cached_property
    def replicated_elements(self) -> int:
        """All stored elements of the model itself replicated over z: embeddings, norms, biases."""
        model = self.job.model
        final_norm = self.hidden_x * (1 + model.norm_biases)
        return model.layers * self.block_replicated_elements + self.table_elements + final_norm

    @property
    def local_elements(self) -> int:
        """All elements of the model itself that a rank stores."""
        return self.sharded_elements + self.replicated_elements

    @property
    def token_elements(self) -> int:
        """Elements of the table of tokens."""
        return self.job.model.vocabulary * self.hidden_x

    @cached_property
    def table_elements(self) -> int:
        """Elements of the embedding tables of tokens and of learned positions."""
        return (self.job.model.vocabulary + self.job.model.position_rows) * self.hidden_x


def document_mask_bytes(job: FourDJob, shapes: Shapes) -> float:
    """Return the size of a micro-step's mask of documents, in compute precision; 0 without one."""
    return float(job.document_mask * shapes.sequences * job.model.sequence**2 * job.element_bytes)
