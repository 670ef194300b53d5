"""The GPT: pre-norm, learned or rotary positions, GELU or SwiGLU, in 4D (section 3 of the algorithm).

* The residual stream is (m, h/G_x), replicated over y; linears alternate between normal and
  transposed, so that nothing is ever redistributed.
* Parameter names of the full model: `embedding.tokens`, `blocks.3.qkv.weight`,
  `blocks.3.norm1.bias`, `final_norm.weight`, `head.weight`, …
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from runtime.model.attention import Attention
from runtime.model.backward import backward_from
from runtime.model.cross_entropy import cross_entropy
from runtime.model.documents import documents_of
from runtime.model.elementwise import activate, residual
from runtime.model.functions import INIT
from runtime.model.kept_attention import KeptAttention
from runtime.model.recompute import Block as Run
from runtime.model.recompute import Recompute
from runtime.parallel.ops import Place
from runtime.parallel.region import branch
from runtime.strategies.four_d.again import Again
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.gathers import Unit
from runtime.strategies.four_d.layers.embedding import Embedding4D
from runtime.strategies.four_d.layers.head_norm import HeadNorms
from runtime.strategies.four_d.layers.linear import Linear4D
from runtime.strategies.four_d.layers.norm import Norm4D
from runtime.strategies.four_d.layers.rms_norm import RmsNorm4D
from runtime.strategies.four_d.parts import Parts
from runtime.weights.store import Parameter
from twin.schedule.ops import Phase
from twin.strategies.four_d.buckets import HEAD, REPLICATED, grouped, layers_in_buckets

BlockDone = Callable[[int | None], None]


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
        again1, again2, again3 = (Again(context) if self.keeps_products else None for _ in range(3))
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
        unread = kept.new_zeros(()).expand_as(kept) if twice else None
        output = self.mlp_down(inner, parts, again3, unread)
        return add("residual2", kept, output, self.mlp_down.bias_left, summed=not twice)

    @property
    def keeps_products(self) -> bool:
        """Whether what norms and the activation give is computed again in the backward pass, if there will be one."""
        return self.layer < self.context.job.products_kept_layers and torch.is_grad_enabled()

    def activated(self, wide: torch.Tensor) -> torch.Tensor:
        """Map what MLP up gives to what MLP down reads."""
        return activate(self.context, self.place, wide, self.mlp_up.bias_left)


class GPT(torch.nn.Module):
    """One rank's part of a GPT."""

    def __init__(self, context: FourDContext) -> None:
        super().__init__()
        model = context.job.model
        self.context = context
        # Declared in the order in which backward passes finish with them, which is the order of the
        # store's buffers, so that buckets of gradients are contiguous.
        self.head = Linear4D(
            context,
            "head",
            Place("head"),
            model.vocabulary,
            model.hidden,
            transposed=False,
            bias=False,
            init=INIT,
            alike="embedding.tokens" if model.tied_embeddings else None,
        )
        blocks = [Block(context, layer) for layer in reversed(range(model.layers))]
        self.blocks = torch.nn.ModuleList(reversed(blocks))
        self.final_norm = norm(context, "final_norm", Place("final_norm"))
        self.embedding = Embedding4D(context)
        self._allocate()
        for name, parameter in context.store.parameters.items():
            path, _, leaf = name.rpartition(".")
            self.get_submodule(path).register_parameter(leaf, parameter.weight)
        self.units = self._units()
        self.block_done: BlockDone = _nothing
        """Called with the layer's number (None: the head) when its backward pass is over."""

    def _allocate(self) -> None:
        """Give parameters a place; where buckets have owners, each ends behind the last weight of its blocks."""
        context, job = self.context, self.context.job
        if not job.gathers_ahead:
            context.store.allocate(context.optimizer_parts)
            return
        weights = {layer: self._weights(layer) for layer in (None, *range(job.model.layers))}
        layers = layers_in_buckets(job)
        wide = context.master_type.itemsize
        sizes = [float(wide * sum(weight.shard.stored for weight in weights[layer])) for layer in layers]
        groups = grouped(sizes, job.data_reduction.bucket_bytes)
        tied = [HEAD] if context.tied else []
        last = [weights[None][-1] for _ in tied] + [weights[layers[group[-1]]][-1] for group in groups]
        context.store.allocate(context.optimizer_parts, last)
        context.updated.lay_out([*tied, *(f"bucket{number}" for number in range(len(groups))), REPLICATED])

    def _weights(self, layer: int | None) -> list[Parameter]:
        """Return the weights of a block that are cut over z, or the head's (None), in the order of the store."""
        if layer is None:
            return [self.head.weight_shard]
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return [linear.weight_shard for linear in block.linears]

    def _units(self) -> list[list[Unit]]:
        """What is gathered together, for each block and, last, for the head."""
        context, job = self.context, self.context.job
        store = context.store
        wide = store.rounds and job.communication_precision.gathers == "fp32"
        context.gathers.source = store.master if wide else store.compute
        units: list[list[Unit]] = []
        for block in self.blocks:
            assert isinstance(block, Block)
            if job.gather_unit == "block":
                shards = [linear.weight_shard for linear in block.linears]
                of_block = [Unit(block.place.under("weights"), shards)]
            else:
                of_block = [linear.unit for linear in block.linears]
            for unit in of_block:
                unit.keep = block.layer < job.cache_gathered_layers
            units.append(of_block)
        head = self.head.unit
        head.keep = True  # its backward follows at once
        units.append([head])
        for unit in (unit for group in units for unit in group):
            context.gathers.register(unit)
        return units

    def forward(self, tokens: torch.Tensor, documents: torch.Tensor | None = None) -> torch.Tensor:
        """Map tokens (sequences, s) of this replica to logits (sequences · s, V/G_y).

        `documents` (sequences, s) is where each token's document begins; without it each sequence is one.
        """
        job = self.context.job
        self.gather_all()
        self.context.documents = None if documents is None else documents_of(self.context, documents)
        stream = self.embedding(tokens)
        if job.lora is not None and torch.is_grad_enabled():
            stream.requires_grad_()  # no table trains, but the adapters of every block do
        for layer, block in enumerate(self.blocks):
            stream = Notify.apply(stream, partial(self._block_done, layer))
            results = KeptAttention() if layer < job.attention_kept_layers and torch.is_grad_enabled() else None
            run: Run = partial(block, sequences=tokens.shape[0], results=results)
            if layer < job.recomputed_layers and torch.is_grad_enabled():
                stream = Recompute.apply(stream, run, partial(self._again, layer), self.context.activations_of(layer))
            else:
                stream = Notify.apply(run(stream), partial(self.gather_again, layer))
        stream = Notify.apply(stream, partial(self._block_done, None))
        logits: torch.Tensor = self.head(self.final_norm(stream))
        return logits

    def gather_all(self) -> None:
        """Gather the weights of a forward pass, in order."""
        self.context.gathers.begin(([unit for group in self.units for unit in group], "fwd"))

    def _block_done(self, layer: int | None) -> None:
        self.block_done(layer)

    def _again(self, layer: int, run: Run) -> Run:
        """Run a block again with gathers of its own."""

        def recomputed(inputs: torch.Tensor) -> torch.Tensor:
            with self.context.ops.recomputing():
                self.gather_again(layer)
                return run(inputs)

        return recomputed

    def gather_again(self, layer: int) -> None:
        """Gather a block's dropped weights again, unless those of all blocks follow each other."""
        if not self.context.job.overlap.across_blocks:
            self.context.gathers.begin(self._missing(layer))

    def gather_all_again(self) -> None:
        """Gather the dropped weights of all blocks again, one after the other, if they follow each other."""
        if self.context.job.overlap.across_blocks:
            self.context.gathers.begin(*(self._missing(layer) for layer in reversed(range(len(self.blocks)))))

    def _missing(self, layer: int) -> tuple[list[Unit], Phase]:
        """Return what is to be gathered, in the order in which it is wanted."""
        dropped = [unit for unit in self.units[layer] if not unit.keep]
        recomputed = layer < self.context.job.recomputed_layers
        return (dropped, "recompute") if recomputed else (dropped[::-1], "bwd")

    def loss(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        documents: torch.Tensor | None = None,
        *,
        backward: bool,
    ) -> torch.Tensor:
        """Return the weighted sum of token losses of one micro-step, and go backward through it.

        tokens and targets (sequences, s); weights (sequences, s): what each target counts for; `documents` as in
        `forward`. The sum (a scalar) is that of this replica.
        """
        with torch.set_grad_enabled(backward):
            logits = self(tokens, documents)
            if backward:
                self.gather_all_again()
            loss, gradient = self.cross_entropy(logits, targets, weights, with_gradient=backward)
        if gradient is not None:
            held = [logits, gradient]
            del logits, gradient
            backward_from(held)
        self.context.documents = None
        self.context.gathers.end_micro_step()
        return loss

    def cross_entropy(
        self, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, *, with_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weighted sum of token losses of logits (m, V/G_y), and their gradient."""
        return cross_entropy(
            self.context,
            logits,
            targets.reshape(-1),
            weights.reshape(-1),
            with_gradient=with_gradient,
            over="y" if self.context.grid.y > 1 else None,
            valid=self.head.weight_shard.shard.valid_rows,
            first=self.head.first_row,
        )


class Notify(torch.autograd.Function):
    """Calls back when a gradient passes."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, callback: Callable[[], None]) -> torch.Tensor:
        """Pass through."""
        ctx.callback = callback
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Call back, pass through."""
        ctx.callback()
        return gradient, None


def _nothing(_layer: int | None) -> None:
    """Nobody waits for blocks."""
