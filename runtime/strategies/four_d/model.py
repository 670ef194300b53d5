"""The GPT: pre-norm, learned or rotary positions, GELU or SwiGLU, in 4D (section 3 of the algorithm).

* The residual stream is (m, h/G_x), replicated over y; linears alternate between normal and
  transposed, so that nothing is ever redistributed.
* Parameter names of the full model: `embedding.tokens`, `blocks.3.qkv.weight`,
  `blocks.3.norm1.bias`, `final_norm.weight`, `head.weight`, …
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from runtime.model.backward import backward_from
from runtime.model.cross_entropy import cross_entropy
from runtime.model.documents import documents_of
from runtime.model.functions import INIT
from runtime.model.kept_attention import KeptAttention
from runtime.model.recompute import Block as Run
from runtime.model.recompute import Recompute
from runtime.parallel.ops import Place
from runtime.strategies.four_d.block import Block, norm
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.gathers import Unit
from runtime.strategies.four_d.layers.embedding import Embedding4D
from runtime.strategies.four_d.layers.linear import Linear4D
from runtime.weights.store import Parameter
from twin.schedule.ops import Phase
from twin.strategies.four_d.buckets import HEAD, REPLICATED, grouped, layers_in_buckets

BlockDone = Callable[[int | None], None]


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
        below: int | None = None
        for layer, block in enumerate(self.blocks):
            self._tell(stream, layer, below)
            results = KeptAttention() if layer < job.attention_kept_layers and torch.is_grad_enabled() else None
            run: Run = partial(block, sequences=tokens.shape[0], results=results)
            again = layer < job.recomputed_layers and torch.is_grad_enabled()
            if again:
                stream = Recompute.apply(stream, run, partial(self._again, layer), self.context.leave_of(layer))
            else:
                stream = run(stream)
            below = None if again else layer
        self.context.inputs_gone()
        self._tell(stream, None, below)
        logits: torch.Tensor = self.head(self.final_norm(stream))
        return logits

    def gather_all(self) -> None:
        """Gather the weights of a forward pass, in order."""
        self.context.gathers.begin(([unit for group in self.units for unit in group], "fwd"))

    def _tell(self, stream: torch.Tensor, above: int | None, below: int | None) -> None:
        """Tell that a block (the head: None) is done when its gradient passes; then gather the weights of one below.

        None below: there is none, or it gathers when it runs again.
        """
        if not stream.requires_grad:
            return

        def passed(_gradient: torch.Tensor) -> None:
            self.block_done(above)
            if below is not None:
                self.gather_again(below)

        stream.register_hook(passed)

    def _again(self, layer: int, run: Run) -> Run:
        """Run a block again with gathers of its own."""

        def recomputed(inputs: torch.Tensor) -> torch.Tensor:
            with self.context.ops.recomputing():
                self.gather_again(layer)
                return run(inputs)

        return recomputed

    def gather_again(self, layer: int) -> None:
        """Gather a block's dropped weights again, unless those of all blocks follow each other."""
        if self.context.gathers.z > 1 and not self.context.job.overlap.across_blocks:
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
            self.context.inputs_back()
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


def _nothing(_layer: int | None) -> None:
    """Nobody waits for blocks."""
