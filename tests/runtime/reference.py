"""The serial model, in plain PyTorch: what every grid must equal. No code of the runtime."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from twin.description.lora import Lora, parts_of
from twin.description.model import Model


@dataclass(frozen=True)
class Shape:
    """A GPT."""

    layers: int
    hidden: int
    heads: int
    positions: int
    vocabulary: int
    mlp: int
    biases: bool = True
    swiglu: bool = False
    rotary: bool = False
    kv_heads: int | None = None
    head_width: int | None = None
    rms: bool = False
    epsilon: float = 1e-5
    qk_norm: bool = False
    parallel: bool = False
    exact_gelu: bool = False
    tied: bool = False
    qkv_bias: bool = False
    rotary_base: float = 10_000.0
    rotary_share: float = 1.0
    slower: tuple[float, ...] | None = None
    """What each plane's speed is divided by."""

    @classmethod
    def of(cls, model: Any, slower: tuple[float, ...] | None = None) -> Shape:
        """Read a job's model; `slower` is what its scaling comes to, worked out by hand."""
        return cls(
            model.layers,
            model.hidden,
            model.heads,
            model.position_rows or model.sequence,
            model.vocabulary,
            model.mlp_hidden,
            model.biases is True,
            model.activation == "swiglu",
            model.positions == "rotary",
            model.kv_heads,
            model.head_width,
            model.norm == "rms",
            model.norm_epsilon,
            model.qk_norm,
            model.residual == "parallel",
            model.activation == "gelu_exact",
            model.tied_embeddings,
            model.biases == "qkv",
            model.rotary_base,
            model.rotary_share,
            slower,
        )


def rotate(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Rotary positions on (b, heads, s, d), by complex numbers."""
    size = int(x.shape[-1] * shape.rotary_share)
    speed = 1.0 / shape.rotary_base ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    if shape.slower is not None:
        speed = speed / torch.tensor(shape.slower, dtype=torch.float64)
    turn = torch.polar(
        torch.ones(x.shape[-2], size // 2, dtype=torch.float64),
        torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), speed),
    )
    planes = torch.complex(x[..., : size // 2].double(), x[..., size // 2 : size].double()) * turn
    return torch.cat((planes.real, planes.imag, x[..., size:].double()), -1).to(x.dtype)


def norm(shape: Shape) -> nn.Module:
    if shape.rms:
        return nn.RMSNorm(shape.hidden, eps=shape.epsilon)
    return nn.LayerNorm(shape.hidden, bias=shape.biases, eps=shape.epsilon)


class Linear(nn.Linear):
    """A linear whose rows may have low-rank adapters beside them."""

    lora: Lora | None = None

    def adapt(self, lora: Lora, parts: Iterable[tuple[str, int]]) -> None:
        """Let the weight be as it is; part by part, with its rows, something else trains."""
        self.lora, self.parts = lora, list(parts)
        self.adapters = nn.ParameterDict()
        for name, rows in self.parts:
            if name in lora.targets:
                self.adapters[f"{name}_a"] = nn.Parameter(torch.empty(lora.rank, self.in_features))
                self.adapters[f"{name}_b"] = nn.Parameter(torch.empty(rows, lora.rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if self.lora is None:
            return y
        beside = [
            x @ self.adapters[f"{name}_a"].T @ self.adapters[f"{name}_b"].T * self.lora.alpha / self.lora.rank
            if name in self.lora.targets
            else torch.zeros(*x.shape[:-1], rows, dtype=x.dtype)
            for name, rows in self.parts
        ]
        return y + torch.cat(beside, -1)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        h, bias = shape.hidden, shape.biases
        self.shape = shape
        self.size = shape.head_width or h // shape.heads
        self.widths = [n * self.size for n in (shape.heads, *[shape.kv_heads or shape.heads] * 2)]
        self.norm1 = norm(shape)
        self.qkv = Linear(h, sum(self.widths), bias=bias or shape.qkv_bias)
        self.projection = Linear(self.widths[0], h, bias=bias)
        self.norm2 = norm(shape)
        if shape.qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(self.size, eps=shape.epsilon) for _ in range(2))
        self.mlp_up = Linear(h, shape.mlp * (2 if shape.swiglu else 1), bias=bias)
        self.mlp_down = Linear(shape.mlp, h, bias=bias)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (part.view(b, s, -1, self.size).transpose(1, 2) for part in self.qkv(x).split(self.widths, dim=2))
        if self.shape.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.shape.rotary:
            q, k = rotate(q, self.shape), rotate(k, self.shape)
        groups = [i * k.shape[1] // q.shape[1] for i in range(q.shape[1])]
        k, v = k[:, groups], v[:, groups]
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
        mixed = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
        return self.projection(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = x
        x = x + self.attend(self.norm1(x))
        inner = self.mlp_up(self.norm2(read if self.shape.parallel else x))
        if self.shape.swiglu:
            gate, up = inner.split(self.shape.mlp, dim=2)
            inner = functional.silu(gate) * up
        else:
            inner = functional.gelu(inner, approximate="none" if self.shape.exact_gelu else "tanh")
        return x + self.mlp_down(inner)


class SerialGPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.ParameterDict({"tokens": nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))})
        if not shape.rotary:
            self.embedding["positions"] = nn.Parameter(torch.empty(shape.positions, shape.hidden))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding["tokens"]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding["tokens"][tokens]
        if not self.shape.rotary:
            x = x + self.embedding["positions"][: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


def adapt(model: SerialGPT, described: Model, lora: Lora) -> None:
    """Let adapters train, and nothing else."""
    model.requires_grad_(False)
    for block in model.blocks:
        for linear in described.block_linears:
            if lora.of_linear(described, linear):
                getattr(block, linear).adapt(lora, parts_of(described, linear))


def one_by_one(model: SerialGPT, tokens: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Logits (sequences, s, V) of documents each computed alone; `begins` (sequences, s) says where each begins."""
    rows = []
    for row, first in zip(tokens, begins.tolist(), strict=True):
        cuts = sorted({*first, len(row)})
        rows.append(torch.cat([model(row[a:b][None])[0] for a, b in itertools.pairwise(cuts)]))
    return torch.stack(rows)


def train(
    model: SerialGPT,
    batches: list[torch.Tensor],
    masks: list[torch.Tensor],
    rates: list[float],
    clip: float | None = 1.0,
    begins: list[torch.Tensor] | None = None,
) -> tuple[list[float], list[float]]:
    """Train on whole global batches (sequences, s + 1); returns losses and gradient norms.

    `begins` is where the document of each input begins, if sequences are not one each.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim == 2]
    vectors = [p for p in trained if p.ndim == 1]
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
    )
    losses, norms = [], []
    for step, (window, mask, rate) in enumerate(zip(batches, masks, rates, strict=True)):
        adam.zero_grad()
        inputs = window[:, :-1]
        logits = model(inputs) if begins is None else one_by_one(model, inputs, begins[step])
        each = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction="none")
        loss = (each * mask.flatten()).sum() / mask.sum()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(trained, clip or math.inf)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms
