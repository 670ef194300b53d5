"""A block of the GPT in 4D: attention and MLP, each after a norm and beside the residual stream.

The residual stream is (m, h/G_x), replicated over y; linears alternate between normal and transposed, so that nothing
is ever redistributed.
"""

from __future__ import annotations

from functools import partial

import torch

from runtime.model.attention import Attention
from runtime.model.elementwise import activate, residual
from runtime.model.functions import INIT
from runtime.model.kept_attention import KeptAttention
from runtime.parallel.ops import Place
from runtime.parallel.region import branch
from runtime.strategies.four_d.again import Again
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.layers.head_norm import HeadNorms
from runtime.strategies.four_d.layers.linear import Linear4D
from runtime.strategies.four_d.layers.norm import Norm4D
from runtime.strategies.four_d.layers.rms_norm import RmsNorm4D
from runtime.strategies.four_d.parts import Parts


def norm(context: FourDContext, name: str, place: Place) -> Norm4D | RmsNorm4D:
    """Make a norm of the model's kind over the residual stream."""
    model = context.job.model
    if model.norm == "rms":
        return RmsNorm4D(context, name, place, model.hidden)
    return Norm4D(context, name, place, model.hidden, bias=model.norm_biases)


class Block(torch.nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream."""

    def __init__(self, context: FourDContext, layer: int) -> None:
        super().__init__()
        model = context.job.model
        mlp = model.mlp_hidden
        self.context, self.layer = context, layer
        place = self.place = Place(f"block{layer}", layer)

        def linear(name: str, *, transposed: bool = False, parts: tuple[int, ...] = ()) -> Linear4D:
            # what is added to the residual stream starts smaller, as in GPT-2
            init = INIT / (2 * model.layers) ** 0.5 if transposed else INIT
            return Linear4D(
                context,
                f"blocks.{layer}.{name}",
                place.under(name),
                *model.block_linears[name],
                transposed=transposed,
                bias=model.has_bias(name),
                parts=parts,
                init=init,
                bias_fused=context.job.fused_elementwise and name != "qkv",
                linear=name,
            )

        self.qkv = linear("qkv", parts=model.qkv_parts)
        self.projection = linear("projection", transposed=True)
        self.mlp_up = linear("mlp_up", parts=(mlp, mlp) if model.activation == "swiglu" else ())
        self.mlp_down = linear("mlp_down", transposed=True)
        self.norm1 = norm(context, f"blocks.{layer}.norm1", place.under("norm1"))
        self.norm2 = norm(context, f"blocks.{layer}.norm2", place.under("norm2"))
        norms = HeadNorms(context, place) if model.qk_norm else None
        if norms is not None:
            self.q_norm, self.k_norm = norms.sides
        self.attention = Attention(context, place, norms, parts=context.grid.y, part=context.mesh.coordinates["y"])
        self.attention_of_heads = self._attention_of_heads()
        """Of this rank's heads over x, where attention is divided by heads."""
        self.parallel = model.residual == "parallel"

    def _attention_of_heads(self) -> Attention | None:
        context, (y, x) = self.context, (self.context.grid.y, self.context.grid.x)
        if not (context.job.divide.attention or context.flat) or context.job.model.key_value_heads % (x * y):
            return None
        place = context.mesh.coordinates["y"] * x + context.mesh.coordinates["x"]
        return Attention(context, self.place, parts=x * y, part=place)

    def attend(
        self, qkv: torch.Tensor, sequences: int, parts: Parts | None, results: KeptAttention | None
    ) -> torch.Tensor:
        """Map queries, keys and values of this rank, all or its part, to what attention gives."""
        if parts is None or parts.columns:
            module = self.attention if parts is None else self.attention_of_heads
            assert module is not None
            attended: torch.Tensor = module(qkv, sequences, results)
            return attended
        with parts.sequences(sequences) as own:
            part: torch.Tensor = self.attention(qkv, own, results)
        return part

    @property
    def linears(self) -> tuple[Linear4D, ...]:
        """The four linears in execution order."""
        return self.qkv, self.projection, self.mlp_up, self.mlp_down

    def forward(self, stream: torch.Tensor, sequences: int, results: KeptAttention | None = None) -> torch.Tensor:
        """Map the residual stream (m, h/G_x) to its next state.

        `results` are what a block that runs twice keeps of attention. Its second run gives no next state, but the
        graph of one.
        """
        twice = results is not None and results.filled
        context, place = self.context, self.place
        kept, side = branch(stream, context.ops, place, "residual1")
        if self.parallel:  # the MLP reads what attention reads
            kept, other = branch(kept, context.ops, place, "residual2")
        parts = Parts.of_attention(context, sequences)
        again1, again2, again3 = (Again(context) for _ in range(3)) if self.keeps_products else (None, None, None)
        attended = self.attend(self.qkv(self.norm1(side, again1), parts, again1), sequences, parts, results)
        add = partial(residual, context, place, first_column=kept.shape[1] * context.mesh.coordinates["x"])
        projected = self.projection(attended, parts, given=results.take() if results and twice else None)
        if results is not None and not twice:
            results.fill(projected)
        kept = add("residual1", kept, projected, self.projection.bias_left)
        if not self.parallel:
            kept, other = branch(kept, context.ops, place, "residual2")
        parts = Parts.of_mlp(context, stream.shape[0])
        wide = self.mlp_up(self.norm2(other, again2), parts, again2)
        inner = self.activated(wide)
        if again3 is not None:
            again3.by(partial(self.activated, wide.detach()))
        ends = twice or self.stops_early
        unread = kept.new_zeros(()).expand_as(kept) if ends else None
        output = self.mlp_down(inner, parts, again3, unread)
        return add("residual2", kept, output, self.mlp_down.bias_left, summed=not ends)

    @property
    def stops_early(self) -> bool:
        """Whether it runs again now, and leaves out what only its output needs."""
        return self.context.job.stops_early and self.context.ops.forward_phase == "recompute"

    @property
    def keeps_products(self) -> bool:
        """Whether what norms and the activation give is computed again in the backward pass, if there will be one."""
        return self.layer < self.context.job.products_kept_layers and torch.is_grad_enabled()

    def activated(self, wide: torch.Tensor) -> torch.Tensor:
        """Map what MLP up gives to what MLP down reads."""
        return activate(self.context, self.place, wide, self.mlp_up.bias_left)
