"""The serial model, in plain PyTorch: what every grid must equal. No code of the runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """A GPT."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    mlp: int
    biases: bool = True
    swiglu: bool = False
    rotary: bool = False


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions on (b, heads, s, d), by complex numbers."""
    size = x.shape[-1]
    speed = 1.0 / 10_000 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    turn = torch.polar(
        torch.ones(x.shape[-2], size // 2, dtype=torch.float64),
        torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), speed),
    )
    planes = torch.complex(x[..., : size // 2].double(), x[..., size // 2 :].double()) * turn
    return torch.cat((planes.real, planes.imag), -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        h, bias = shape.hidden, shape.biases
        self.shape = shape
        self.norm1 = nn.LayerNorm(h, bias=bias)
        self.qkv = nn.Linear(h, 3 * h, bias=bias)
        self.projection = nn.Linear(h, h, bias=bias)
        self.norm2 = nn.LayerNorm(h, bias=bias)
        self.mlp_up = nn.Linear(h, shape.mlp * (2 if shape.swiglu else 1), bias=bias)
        self.mlp_down = nn.Linear(shape.mlp, h, bias=bias)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (part.view(b, s, self.shape.heads, -1).transpose(1, 2) for part in self.qkv(x).split(h, dim=2))
        if self.shape.rotary:
            q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
        mixed = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
        return self.projection(mixed.transpose(1, 2).reshape(b, s, h))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        inner = self.mlp_up(self.norm2(x))
        if self.shape.swiglu:
            gate, up = inner.split(self.shape.mlp, dim=2)
            inner = functional.silu(gate) * up
        else:
            inner = functional.gelu(inner, approximate="tanh")
        return x + self.mlp_down(inner)


class SerialGPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.ParameterDict({"tokens": nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))})
        if not shape.rotary:
            self.embedding["positions"] = nn.Parameter(torch.empty(shape.sequence, shape.hidden))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.hidden, bias=shape.biases)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding["tokens"][tokens]
        if not self.shape.rotary:
            x = x + self.embedding["positions"][: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


def train(
    model: SerialGPT,
    batches: list[torch.Tensor],
    masks: list[torch.Tensor],
    rates: list[float],
    clip: float | None = 1.0,
) -> tuple[list[float], list[float]]:
    """Train on whole global batches (sequences, s + 1); returns losses and gradient norms."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
    )
    losses, norms = [], []
    for window, mask, rate in zip(batches, masks, rates, strict=True):
        adam.zero_grad()
        logits = model(window[:, :-1])
        each = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction="none")
        loss = (each * mask.flatten()).sum() / mask.sum()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms
