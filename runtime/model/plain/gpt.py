"""Blocks, and the whole model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from runtime.model.context import ModelContext
from runtime.model.documents import documents_of
from runtime.model.elementwise import activate
from runtime.model.functions import INIT
from runtime.model.plain.layers import Linear
from runtime.model.plain.norms import HeadNorms, Norm, RmsNorm
from runtime.model.plain.parts import Layers, Span
from runtime.model.recompute import Block as Run
from runtime.model.recompute import Recompute
from runtime.parallel.ops import Place
from runtime.parallel.region import branch
from runtime.step.activations import Leave
from runtime.weights.store import Parameter


class Block(nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream."""

    norm1: Norm | RmsNorm
    norm2: Norm | RmsNorm
    qkv: Linear
    projection: Linear
    mlp_up: Linear
    mlp_down: Linear

    def __init__(self, layers: Layers, layer: int) -> None:
        super().__init__()
        context = layers.context
        model = context.job.model
        self.context, self.layers, self.place = context, layers, Place(f"block{layer}", layer)
        # what is added to the residual stream starts smaller, as in GPT-2
        smaller = INIT / (2 * model.layers) ** 0.5
        for name, (n, k) in model.block_linears.items():
            init = smaller if name in ("projection", "mlp_down") else INIT
            full = f"blocks.{layer}.{name}"
            bias = model.has_bias(name)
            self.add_module(name, layers.linear(full, self.place.under(name), n, k, bias=bias, init=init))
        for name in ("norm1", "norm2"):
            self.add_module(name, layers.norm(f"blocks.{layer}.{name}", self.place.under(name)))
        norms: HeadNorms | None = None
        if model.qk_norm:
            self.q_norm, self.k_norm = nn.Module(), nn.Module()
            norms = layers.head_norms(self.place, (self.q_norm, self.k_norm))
        self.attention = layers.attention(self.place, norms)
        self.parallel = model.residual == "parallel"

    def forward(self, stream: torch.Tensor, sequences: int) -> torch.Tensor:
        """Map the residual stream (m, h) to its next state; of what that takes only the stream itself may be kept."""
        run: Run = partial(self._run, sequences=sequences)
        if not (self.context.job.recompute and torch.is_grad_enabled()):
            return run(stream)
        recomputed: torch.Tensor = Recompute.apply(stream, run, self._again, self._leave)
        return recomputed

    @property
    def _leave(self) -> Leave | None:
        """What lets the block's input go until its backward pass, if it does not stay on the device."""
        assert self.place.layer is not None
        return self.context.leave_of(self.place.layer)

    def _again(self, run: Run) -> Run:
        def recomputed(stream: torch.Tensor) -> torch.Tensor:
            with self.context.ops.recomputing():
                return run(stream)

        return recomputed

    def _run(self, stream: torch.Tensor, sequences: int) -> torch.Tensor:
        context, ops, place = self.context, self.context.ops, self.place
        kept, side = branch(stream, ops, place, "residual1")
        if self.parallel:  # the MLP reads what attention reads
            kept, other = branch(kept, ops, place, "residual2")
        attended = self.attention(self.qkv(self.norm1(side)), sequences)
        kept = self.layers.residual(place, "residual1", kept, self.projection(attended))
        if not self.parallel:
            kept, other = branch(kept, ops, place, "residual2")
        inner = activate(context, place, self.mlp_up(self.norm2(other)))
        return self.layers.residual(place, "residual2", kept, self.mlp_down(inner))


def whole(parameter: Parameter) -> nn.Parameter:
    """Make a module's parameter of what the store computes with, all of which is here."""
    return nn.Parameter(parameter.weight.detach().view(parameter.shard.local_shape))


class PlainGPT(nn.Module):
    """The whole model, or a part of its layers with what comes before or behind them."""

    def __init__(self, layers: Layers, span: Span) -> None:
        super().__init__()
        context = layers.context
        model, store = context.job.model, context.store
        self.context, self.layers, self.span = context, layers, span
        known = set(store.parameters)
        tied = "embedding.tokens" if model.tied_embeddings else None
        # declared in the order in which the backward pass finishes with them: so checkpoints are laid out alike
        if span.last:
            place, size = Place("head"), (model.vocabulary, model.hidden)
            self.head = layers.linear("head", place, *size, bias=False, init=INIT, also=tied)
        blocks = [Block(layers, layer) for layer in reversed(span.layers)]
        self.blocks = nn.ModuleList(reversed(blocks))
        if span.last:
            self.final_norm = layers.norm("final_norm", Place("final_norm"))
        if span.first:
            self.embedding = layers.embedding()
        # known to PyTorch in the order of the forward pass, in which FSDP2 goes through them
        known_as = ("embedding", "blocks", "final_norm", "head")
        self._modules = {name: self._modules[name] for name in known_as if name in self._modules}
        self.names = tuple(name for name in store.parameters if name not in known)
        """Of its parameters, as they were declared."""

    def fill(self, made: Callable[[Parameter], nn.Parameter] = whole) -> None:
        """Give modules their parameters, which the store has allocated; `made` says what they are made of."""
        for name in self.names:
            self.hold(name, made(self.context.store.parameters[name]))

    def hold(self, name: str, weight: nn.Parameter) -> None:
        """Make a tensor the parameter of a name, and of the other one that it has."""
        spec = self.context.store.parameters[name].spec
        for each in filter(None, (name, spec.also)):
            self._hold(each, weight)

    def _hold(self, name: str, weight: nn.Parameter) -> None:
        path, _, leaf = self.inside(name).rpartition(".")
        module = self.get_submodule(path)
        if leaf in module.__dict__:  # None until now
            del module.__dict__[leaf]
        module.register_parameter(leaf, weight)

    def inside(self, name: str) -> str:
        """Return a parameter's path in this module, which counts its blocks from 0."""
        kind, _, rest = name.partition(".")
        if kind != "blocks":
            return name
        layer, _, rest = rest.partition(".")
        return f"blocks.{int(layer) - self.span.layers.start}.{rest}"

    def parameter(self, name: str) -> nn.Parameter:
        """Return the module's parameter of a name."""
        return self.get_parameter(self.inside(name))

    def forward(
        self, inputs: torch.Tensor, documents: torch.Tensor | None = None, *, sequences: int | None = None
    ) -> torch.Tensor:
        """Map tokens (sequences, s) to logits (sequences · s, V).

        Where others have the embedding the input is the residual stream (m, h) of so many `sequences`, and where others
        have the head so is the output. `documents` (sequences, s) is where each token's document begins; without it
        each sequence is one.
        """
        self.context.documents = None if documents is None else documents_of(self.context, documents)
        count = sequences or inputs.shape[0]
        stream = self.embedding(inputs) if self.span.first else inputs
        for block in self.blocks:
            stream = block(stream, count)
        self.context.inputs_gone()
        if not self.span.last:
            return stream
        logits: torch.Tensor = self.head(self.final_norm(stream))
        return logits


def plain_gpt(context: ModelContext, made: Callable[[Parameter], nn.Parameter] = whole) -> PlainGPT:
    """Make a whole model, every part of which is on this rank wherever it is computed."""
    model = PlainGPT(Layers(context), Span.whole(context.job.model.layers))
    context.store.allocate()
    model.fill(made)
    return model
