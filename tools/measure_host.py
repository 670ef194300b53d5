"""Measure the CPU time that an eager training loop needs to issue one kernel.

    python tools/measure_host.py            (needs the `runtime` extra)

A block of the 4D model (linears as `autograd.Function`, layer norm, unfused attention, dropout,
checkpointing with random states saved and restored) runs forward, recomputation and backward on
tensors so small that only the framework's own work is left. The time is divided by the kernels
that the schedule counts for such a block. On a CPU this leaves out the device's launch call and
allocator, which add 6 to 8 µs on a GPU.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from twin.schedule.kernels import Gemm
from twin.schedule.ops import Compute
from twin.strategies import load_job
from twin.strategies.four_d.step import generate

BLOCKS, WARM, RUNS = 20, 10, 40
WIDTH, HEADS, TOKENS = 16, 2, 4


class Product(torch.autograd.Function):
    """x · Wᵀ with a flat weight, as a 4D linear stores it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.shape = shape
        return torch.matmul(x, w.view(shape).t())

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        dx = torch.matmul(g, w.view(ctx.shape))
        dw = torch.matmul(g.reshape(-1, g.shape[-1]).t(), x.reshape(-1, x.shape[-1]))
        return dx, dw.view(-1), None


class Linear(nn.Module):
    """A linear layer over `Product`."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n * k) * 0.02)
        self.bias = nn.Parameter(torch.zeros(n))
        self.shape = (n, k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Product.apply(x, self.weight.to(x.dtype), self.shape) + self.bias


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        h = WIDTH
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.projection = Linear(h, 3 * h), Linear(h, h)
        self.mlp_up, self.mlp_down = Linear(h, 4 * h), Linear(4 * h, h)
        self.register_buffer("mask", ~torch.tril(torch.ones(TOKENS, TOKENS)).bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t, b, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(t, b * HEADS, 3 * h // HEADS).transpose(0, 1).chunk(3, -1)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(h // HEADS)
        weights = torch.softmax(scores.masked_fill(self.mask, -1e4), -1)
        mixed = torch.bmm(nn.functional.dropout(weights, 0.1), v)
        x = x + nn.functional.dropout(self.projection(mixed.transpose(0, 1).reshape(t, b, h)), 0.1)
        inner = nn.functional.gelu(self.mlp_up(self.norm2(x)), approximate="tanh")
        return x + nn.functional.dropout(self.mlp_down(inner), 0.1)


class Checkpoint(torch.autograd.Function):
    """Run a block without saving, and again before its backward, with the same random numbers."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        ctx.run, ctx.states = run, (torch.get_rng_state(), torch.get_rng_state())
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        now = torch.get_rng_state(), torch.get_rng_state()
        for state in ctx.states:
            torch.set_rng_state(state)
        with torch.enable_grad():
            y = ctx.run(x)
        for state in now:
            torch.set_rng_state(state)
        torch.autograd.backward(y, g)
        return None, x.grad


def kernels_per_block() -> int:
    """Kernels that the schedule counts for one such block."""
    job = load_job(
        {
            "model": {"layers": 1, "hidden": WIDTH, "heads": HEADS, "sequence": TOKENS, "vocabulary": 64},
            "machine": "laptop",
            "ranks": 1,
            "grid": {},
            "batch": {"sequences": 1, "micro_sequences": 1},
            "attention": "plain",
            "dropout": 0.1,
        }
    )
    ops = [op for _, op in generate(job).named() if isinstance(op, Compute) and op.layer == 0]
    return sum(1 if isinstance(op.kernel, Gemm) else op.kernel.kernels for op in ops)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def step() -> None:
        x = torch.randn(TOKENS, 1, WIDTH, requires_grad=True)
        for block in blocks:
            x = Checkpoint.apply(block, x)
        x.sum().backward()
        for parameter in blocks.parameters():
            parameter.grad = None

    for _ in range(WARM):
        step()
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        step()
        seconds.append((time.perf_counter() - begin) / BLOCKS)
    block, kernels = statistics.median(seconds), kernels_per_block()
    print(f"{block * 1e3:.3f} ms a block, {kernels} kernels: {block / kernels * 1e6:.1f} us of CPU a kernel")


if __name__ == "__main__":
    main()
