"""Activations of a GPT, the same on every grid; and how weights begin."""

from __future__ import annotations

from typing import Any

import torch

from runtime.parallel.region import plus

INIT = 0.02
"""Standard deviation of weights at the start, as in GPT-2."""


def gelu(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """GELU of x + bias by its tanh approximation, as GPT-2 has it."""
    return torch.nn.functional.gelu(plus(x, bias), approximate="tanh")


def exact_gelu(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """GELU of x + bias by the error function."""
    return torch.nn.functional.gelu(plus(x, bias))


def swiglu(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply silu of the first half of x + bias by the second half (Shazeer 2020)."""
    gate, up = plus(x, bias).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def swiglu_in_steps(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`swiglu` in as few passes over memory as kernels that are not fused can do."""
    result: torch.Tensor = _SwiGLU.apply(plus(x, bias))
    return result


class _SwiGLU(torch.autograd.Function):
    """Two kernels forward, four backward; both parts of the gradient are written where they belong."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate, up = x.chunk(2, -1)
        both = torch.empty_like(x)
        of_gate, of_up = both.chunk(2, -1)
        torch.mul(gradient, up, out=of_gate)
        torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
        torch.ops.aten.silu.out(gate, out=of_up)
        of_up.mul_(gradient)
        return both
