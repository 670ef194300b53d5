"""The transformer to be trained: its shape, whichever family it is of.

* Pre-norm, four linears a block: qkv, projection, MLP up, MLP down; layer norm or RMS norm.
* Attention of as many heads for keys and values as for queries, or of fewer (grouped, multi-query).
* Positions learned (a table added to the embedding) or rotary (queries and keys turned).
* MLP of GELU, or of SwiGLU: `silu(gate) · up`, whose two parts are one linear of twice the width.

Models that the field knows by name are in `twin.description.presets`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from twin.description.grid import divisors, nearest
from twin.description.problems import Problem
from twin.description.spec import Spec

Positive = Annotated[int, Field(gt=0, le=10**9, strict=True)]


class RotaryScaling(Spec):
    """How rotary positions are slowed down for sequences longer than those first trained on."""

    kind: Literal["linear", "llama3"]
    """linear: every plane turns slower by `factor`; llama3: only those whose turns are longer than the original
    sequence allows, with a ramp between (Llama 3.1)."""
    factor: Annotated[float, Field(ge=1)]
    """How many times slower."""
    low_frequency_factor: Annotated[float, Field(gt=0)] = 1.0
    """Of llama3: planes that turn less than so many times over the original sequence are slowed fully."""
    high_frequency_factor: Annotated[float, Field(gt=0)] = 4.0
    """Of llama3: planes that turn more than so many times over it are left as they are."""
    original_sequence: Positive = 8192
    """Of llama3: tokens of the sequences first trained on."""


class Model(Spec):
    """The shape of a transformer."""

    name: str = "custom"
    """For people; the preset's name."""
    layers: Annotated[int, Field(gt=0, le=10_000, strict=True)]
    """Transformer blocks."""
    hidden: Positive
    """Width of the residual stream."""
    heads: Positive
    """Attention heads of queries; divides hidden unless `head_width` is given."""
    kv_heads: Positive | None = None
    """Heads of keys and values, each for equally many heads of queries; as many as those if absent."""
    head_width: Positive | None = None
    """Width of a head where it is not hidden / heads."""
    sequence: Positive
    """Tokens in one training sequence."""
    vocabulary: Positive
    """Rows of the embedding table, padding included."""
    mlp_ratio: Positive = 4
    """MLP width over hidden."""
    mlp_width: Positive | None = None
    """MLP width where it is no multiple of hidden, such as 11008 of 4096; overrides `mlp_ratio`."""
    activation: Literal["gelu", "gelu_exact", "swiglu"] = "gelu"
    """Of the MLP. gelu: by its tanh approximation, gelu_exact: by the error function; swiglu multiplies silu of a
    gate into it, and has a weight more for that."""
    norm: Literal["layer", "rms"] = "layer"
    """layer: mean and deviation; rms: root of the mean square, without bias."""
    norm_epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Added to the variance, or to the mean square."""
    qk_norm: StrictBool = False
    """RMS norm of each head's queries and keys, before they are turned; one weight for all heads of a block."""
    residual: Literal["serial", "parallel"] = "serial"
    """serial: the MLP reads what attention has written; parallel: both read the same."""
    positions: Literal["learned", "rotary"] = "learned"
    """learned: a table; rotary: queries and keys are turned by their place, without parameters."""
    max_positions: Positive | None = None
    """Rows of the table of learned positions, where there are more than `sequence`; of rotary ones, which have none,
    the longest sequence that the weights were made for."""
    rotary_base: Annotated[float, Field(gt=1)] = 10_000.0
    """The slowest plane turns about so many times slower than the fastest."""
    rotary_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's elements that is turned, from the first on."""
    rotary_scaling: RotaryScaling | None = None
    window: Positive | None = None
    """Tokens that attention looks back. Only one that does not bite is known: of at least `sequence`."""
    biases: StrictBool | Literal["qkv"] = True
    """true: linears carry biases, and layer norms; qkv: only the linear of queries, keys and values."""
    tied_embeddings: StrictBool = False
    """The head's weight is the table of tokens."""

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads if self.head_width is None else self.head_width

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def rotary_size(self) -> int:
        """Elements of a head that are turned."""
        return int(self.rotary_share * self.head_size) if self.positions == "rotary" else 0

    @property
    def qkv_parts(self) -> tuple[int, int, int]:
        """Rows of queries, keys and values in their linear."""
        keys = self.key_value_heads * self.head_size
        return self.heads * self.head_size, keys, keys

    @property
    def mlp_hidden(self) -> int:
        """Width inside the MLP, after its activation."""
        return self.mlp_ratio * self.hidden if self.mlp_width is None else self.mlp_width

    @property
    def mlp_kind(self) -> Literal["gelu", "swiglu"]:
        """What the op of the activation is called: both forms of GELU move the same."""
        return "swiglu" if self.activation == "swiglu" else "gelu"

    @property
    def block_linears(self) -> dict[str, tuple[int, int]]:
        """Out- and in-features of a block's linears, in execution order."""
        h, wide, parts = self.hidden, self.mlp_hidden, self.qkv_parts
        up = 2 * wide if self.activation == "swiglu" else wide
        return {"qkv": (sum(parts), h), "projection": (h, parts[0]), "mlp_up": (up, h), "mlp_down": (h, wide)}

    def has_bias(self, linear: str) -> bool:
        """Tell whether a block's linear carries a bias."""
        return self.biases is True or (self.biases == "qkv" and linear == "qkv")

    @property
    def norm_biases(self) -> bool:
        """Whether norms carry biases."""
        return self.biases is True and self.norm == "layer"

    @property
    def block_weights(self) -> int:
        """Elements of one block's four weight matrices."""
        return sum(out * into for out, into in self.block_linears.values())

    @property
    def block_vectors(self) -> int:
        """Elements of one block's norms and biases."""
        biases = sum(out for name, (out, _) in self.block_linears.items() if self.has_bias(name))
        return biases + 2 * self.hidden * (1 + self.norm_biases) + 2 * self.head_size * self.qk_norm

    @property
    def position_rows(self) -> int:
        """Rows of the table of learned positions; rotary ones have none."""
        return (self.max_positions or self.sequence) if self.positions == "learned" else 0

    @property
    def parameters(self) -> int:
        """All trainable elements, embedding, positions and head included; tied ones once."""
        tables = (2 - self.tied_embeddings) * self.vocabulary + self.position_rows
        last = self.hidden * (1 + self.norm_biases)
        return self.layers * (self.block_weights + self.block_vectors) + last + tables * self.hidden


BEYOND = (
    *("kv_heads", "head_width", "norm", "norm_epsilon", "qk_norm", "residual", "rotary_base", "rotary_share"),
    *("rotary_scaling", "max_positions", "tied_embeddings"),
)
"""Keys by which a model is more than a GPT."""


ROTARY = ("rotary_base", "rotary_share", "rotary_scaling")
"""Keys that say how rotary positions turn."""


def check(model: Model) -> list[Problem]:
    """Return the rules that a shape breaks, whatever it is trained on."""
    problems = _check_heads(model)
    if model.positions != "rotary":
        remedy = "is of rotary positions, which the model does not have; set positions: rotary, or leave it out"
        given = {key: getattr(model, key) for key in ROTARY if getattr(model, key) != Model.model_fields[key].default}
        problems += [Problem(f"model.{key}", remedy, value) for key, value in given.items()]
    if model.heads % model.key_value_heads:
        remedy = f"must divide heads {model.heads}; nearest is {nearest(model.key_value_heads, divisors(model.heads))}"
        problems.append(Problem("model.kv_heads", remedy, model.kv_heads))
    if model.window is not None and model.window < model.sequence:
        remedy = f"is shorter than the sequence of {model.sequence}: attention over windows is not known here; "
        problems.append(Problem("model.window", remedy + f"set sequence to at most {model.window}", model.window))
    if model.max_positions is not None and model.max_positions < model.sequence:
        remedy = f"the sequence has {model.sequence} tokens; give it as many rows at least"
        problems.append(Problem("model.max_positions", remedy, model.max_positions))
    return problems


def _check_heads(model: Model) -> list[Problem]:
    """Heads share hidden evenly, or have a width of their own; rotary positions turn pairs of a head's elements."""
    hidden, rotary = model.hidden, model.positions == "rotary"
    if rotary and model.rotary_share < 1 and (model.rotary_size < 2 or model.rotary_size % 2):
        remedy = f"turns {model.rotary_size} elements of a head of {model.head_size}; choose an even number of them"
        return [Problem("model.rotary_share", remedy, model.rotary_share)]
    if model.head_width is not None:
        if rotary and model.head_width % 2:
            return [Problem("model.head_width", "rotary positions need an even head size", model.head_width)]
        return []
    if rotary and hidden % 2:
        remedy = "rotary positions need an even head size, so an even hidden; or set positions to learned"
        return [Problem("model.hidden", remedy, hidden)]
    choices = [heads for heads in divisors(hidden) if not rotary or hidden // heads % 2 == 0]
    if model.heads in choices:
        return []
    rule = f"must divide hidden {hidden}" + (" into heads of even size" if rotary else "")
    remedy = f"{rule}; nearest is {nearest(model.heads, choices)}"
    return [Problem("model.heads", remedy, model.heads)]
