"""The GPT to be trained: its shape, and the presets the field knows by name.

* Pre-norm GPT, four linears a block: qkv, projection, MLP up, MLP down.
* Positions learned (a table added to the embedding) or rotary (queries and keys turned).
* MLP of GELU, or of SwiGLU: `silu(gate) · up`, whose two parts are one linear of twice the width.
* `gpt-5b` … `gpt-640b` are Table II of arXiv 2502.08145; sequence length 2048 and the padded
  GPT-2 vocabulary of 50,304 come from the authors' launch scripts
  (github axonn-ai/Megatron-AxoNN, branch gordon-bell-perlmutter).
* `gpt2` … `gpt2-xl` are Radford et al. 2019.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from twin.description.spec import Spec

Positive = Annotated[int, Field(gt=0, le=10**9, strict=True)]


class Model(Spec):
    """The shape of a GPT."""

    name: str = "custom"
    """For people; the preset's name."""
    layers: Annotated[int, Field(gt=0, le=10_000, strict=True)]
    """Transformer blocks."""
    hidden: Positive
    """Width of the residual stream."""
    heads: Positive
    """Attention heads; divides hidden."""
    sequence: Positive
    """Tokens in one training sequence."""
    vocabulary: Positive
    """Rows of the embedding table, padding included."""
    mlp_ratio: Positive = 4
    """MLP width over hidden."""
    mlp_width: Positive | None = None
    """MLP width where it is no multiple of hidden, such as 11008 of 4096; overrides `mlp_ratio`."""
    activation: Literal["gelu", "swiglu"] = "gelu"
    """Of the MLP; swiglu multiplies silu of a gate into it, and has a weight more for that."""
    positions: Literal["learned", "rotary"] = "learned"
    """learned: a table; rotary: queries and keys are turned by their place, without parameters."""
    biases: StrictBool = True
    """True if linears and norms carry biases."""

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def mlp_hidden(self) -> int:
        """Width inside the MLP, after its activation."""
        return self.mlp_ratio * self.hidden if self.mlp_width is None else self.mlp_width

    @property
    def block_linears(self) -> dict[str, tuple[int, int]]:
        """Out- and in-features of a block's linears, in execution order.

        >>> presets()["gpt2"].model_copy(update={"activation": "swiglu"}).block_linears["mlp_up"]
        (6144, 768)
        """
        h, wide = self.hidden, self.mlp_hidden
        up = 2 * wide if self.activation == "swiglu" else wide
        return {"qkv": (3 * h, h), "projection": (h, h), "mlp_up": (up, h), "mlp_down": (h, wide)}

    @property
    def block_weights(self) -> int:
        """Elements of one block's four weight matrices."""
        return sum(out * into for out, into in self.block_linears.values())

    @property
    def position_rows(self) -> int:
        """Rows of the table of learned positions; rotary ones have none."""
        return self.sequence if self.positions == "learned" else 0

    @property
    def parameters(self) -> int:
        """All trainable elements, embedding, positions and (untied) head included."""
        norm = self.hidden * (1 + self.biases)
        biases = sum(out for out, _ in self.block_linears.values()) if self.biases else 0
        tables = (2 * self.vocabulary + self.position_rows) * self.hidden
        return self.layers * (self.block_weights + biases + 2 * norm) + norm + tables


def _gpt(name: str, layers: int, hidden: int, heads: int, sequence: int = 2048, vocabulary: int = 50304) -> Model:
    return Model(name=name, layers=layers, hidden=hidden, heads=heads, sequence=sequence, vocabulary=vocabulary)


def presets() -> dict[str, Model]:
    """Return the models known by name."""
    models = [
        _gpt("gpt2", 12, 768, 12, 1024),
        _gpt("gpt2-medium", 24, 1024, 16, 1024),
        _gpt("gpt2-large", 36, 1280, 20, 1024),
        _gpt("gpt2-xl", 48, 1600, 25, 1024),
        _gpt("gpt-5b", 24, 4096, 32),
        _gpt("gpt-10b", 32, 5120, 40),
        _gpt("gpt-20b", 32, 7168, 56),
        _gpt("gpt-40b", 38, 9216, 72),
        _gpt("gpt-60b", 56, 9216, 72),
        _gpt("gpt-80b", 42, 12288, 96),
        _gpt("gpt-160b", 84, 12288, 96),
        _gpt("gpt-320b", 96, 16384, 128),
        _gpt("gpt-640b", 192, 16384, 128),
    ]
    return {model.name: model for model in models}
