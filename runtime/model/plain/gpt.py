"""Blocks, and the whole model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from runtime.model.attention import Attention
from runtime.model.context import ModelContext
from runtime.model.documents import documents_of
from runtime.model.elementwise import activate, residual
from runtime.model.functions import INIT
from runtime.model.plain.layers import Embedding, HeadNorms, Linear, Norm, RmsNorm, norm_of
from runtime.model.recompute import Block as Run
from runtime.model.recompute import Recompute
from runtime.parallel.ops import Place
from runtime.parallel.region import branch
from runtime.weights.store import Parameter


class Block(nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream."""

    norm1: Norm | RmsNorm
    norm2: Norm | RmsNorm
    qkv: Linear
    projection: Linear
    mlp_up: Linear
    mlp_down: Linear

    def __init__(self, context: ModelContext, layer: int) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place = context, Place(f"block{layer}", layer)
        # what is added to the residual stream starts smaller, as in GPT-2
        smaller = INIT / (2 * model.layers) ** 0.5
        for name, (n, k) in model.block_linears.items():
            init = smaller if name in ("projection", "mlp_down") else INIT
            full = f"blocks.{layer}.{name}"
            bias = model.has_bias(name)
            self.add_module(name, Linear(context, full, self.place.under(name), n, k, bias=bias, init=init))
        for name in ("norm1", "norm2"):
            self.add_module(name, norm_of(context, f"blocks.{layer}.{name}", self.place.under(name)))
        norms = None
        if model.qk_norm:
            self.q_norm, self.k_norm = nn.Module(), nn.Module()
            norms = HeadNorms(context, self.place, (self.q_norm, self.k_norm))
        self.attention = Attention(context, self.place, norms)
        self.parallel = model.residual == "parallel"

    def forward(self, stream: torch.Tensor, sequences: int) -> torch.Tensor:
        """Map the residual stream (m, h) to its next state; of what that takes only the stream itself may be kept."""
        run: Run = partial(self._run, sequences=sequences)
        if not (self.context.job.recompute and torch.is_grad_enabled()):
            return run(stream)
        recomputed: torch.Tensor = Recompute.apply(stream, run, self._again)
        return recomputed

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
        kept = residual(context, place, "residual1", kept, self.projection(attended))
        if not self.parallel:
            kept, other = branch(kept, ops, place, "residual2")
        inner = activate(context, place, self.mlp_up(self.norm2(other)))
        return residual(context, place, "residual2", kept, self.mlp_down(inner))


def whole(parameter: Parameter) -> nn.Parameter:
    """Make a module's parameter of what the store computes with, all of which is here."""
    return nn.Parameter(parameter.weight.detach().view(parameter.spec.shape))


class PlainGPT(nn.Module):
    """The whole model; `made` says what its modules' parameters are made of."""

    def __init__(self, context: ModelContext, made: Callable[[Parameter], nn.Parameter] = whole) -> None:
        super().__init__()
        model = context.job.model
        self.context = context
        tied = "embedding.tokens" if model.tied_embeddings else None
        # declared in the order in which the backward pass finishes with them: so checkpoints are laid out alike
        place = Place("head")
        self.head = Linear(context, "head", place, model.vocabulary, model.hidden, bias=False, init=INIT, also=tied)
        blocks = [Block(context, layer) for layer in reversed(range(model.layers))]
        self.blocks = nn.ModuleList(reversed(blocks))
        self.final_norm = norm_of(context, "final_norm", Place("final_norm"))
        self.embedding = Embedding(context)
        context.store.allocate()
        for name, parameter in context.store.parameters.items():
            self.hold(name, made(parameter))

    def hold(self, name: str, weight: nn.Parameter) -> None:
        """Make a tensor the parameter of a name, and of the other one that it has."""
        spec = self.context.store.parameters[name].spec
        for each in filter(None, (name, spec.also)):
            self._hold(each, weight)

    def _hold(self, name: str, weight: nn.Parameter) -> None:
        path, _, leaf = name.rpartition(".")
        module = self.get_submodule(path)
        if leaf in module.__dict__:  # None until now
            del module.__dict__[leaf]
        module.register_parameter(leaf, weight)

    def forward(self, tokens: torch.Tensor, documents: torch.Tensor | None = None) -> torch.Tensor:
        """Map tokens (sequences, s) to logits (sequences · s, V).

        `documents` (sequences, s) is where each token's document begins; without it each sequence is one.
        """
        self.context.documents = None if documents is None else documents_of(self.context, documents)
        stream = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream, tokens.shape[0])
        logits: torch.Tensor = self.head(self.final_norm(stream))
        return logits
