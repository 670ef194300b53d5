"""The GPT to be trained: its shape, and the presets the field knows by name.

* Pre-norm GPT: learned positions, GELU, four linears a block (qkv, projection, MLP up, down).
* `gpt-5b` … `gpt-640b` are Table II of arXiv 2502.08145; sequence length 2048 and the padded
  GPT-2 vocabulary of 50,304 come from the authors' launch scripts
  (github axonn-ai/Megatron-AxoNN, branch gordon-bell-perlmutter).
* `gpt2` … `gpt2-xl` are Radford et al. 2019.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from twin.description.spec import Spec

Positive = Annotated[int, Field(gt=0, le=10**9, strict=True)]


class Model(Spec):
    """The shape of a GPT."""

    name: str = "custom"
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
    biases: StrictBool = True
    """Whether linears and norms carry biases."""

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def mlp_hidden(self) -> int:
        """Width inside the MLP."""
        return self.mlp_ratio * self.hidden

    @property
    def block_weights(self) -> int:
        """Elements of one block's four weight matrices."""
        return self.hidden * (4 * self.hidden + 2 * self.mlp_hidden)

    @property
    def parameters(self) -> int:
        """All trainable elements, embedding, positions and (untied) head included."""
        vectors = 2 * self.hidden * (1 + self.biases)
        if self.biases:
            vectors += 5 * self.hidden + self.mlp_hidden
        final_norm = self.hidden * (1 + self.biases)
        return (self.layers * (self.block_weights + vectors) + final_norm
                + (2 * self.vocabulary + self.sequence) * self.hidden)  # fmt: skip


def _gpt(name: str, layers: int, hidden: int, heads: int, sequence: int = 2048,
         vocabulary: int = 50304) -> Model:  # fmt: skip
    return Model(name=name, layers=layers, hidden=hidden, heads=heads, sequence=sequence,
                 vocabulary=vocabulary)  # fmt: skip


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
