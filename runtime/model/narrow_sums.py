"""Gradients that are sums over tokens, added up in fp32 on CPUs too.

PyTorch's kernels there add up rows of 16 bits in 16 bits, whatever type the result has: of 8,192 rows the gradients of
a norm's vectors come out a tenth to three quarters off, and the row of a frequent token as much. (On GPUs they are
added up in fp32.) Numbers that are 32 bits wide go to the same kernels as ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

ROWS, COLUMNS = 256, 64
"""What is widened at once: it stays in a core's cache."""


def narrow(x: torch.Tensor) -> bool:
    """Tell whether PyTorch's kernels would add up such numbers in less than 32 bits."""
    return x.device.type == "cpu" and x.element_size() < 4


def norm_gradient(
    dy: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    vectors: tuple[torch.Tensor, torch.Tensor | None],
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of a layer norm's input (rows, width) and of weight and bias, those that are wanted.

    `mean` and `rstd` are (rows, 1), `vectors` weight and bias. Sums over narrow rows are fp32.
    """
    kernel, width = torch.ops.aten.native_layer_norm_backward, [x.shape[1]]
    if not narrow(x) or not any(wanted[1:]):
        found: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
        found = kernel(dy, x, width, mean, rstd, *vectors, list(wanted))
        return found
    dx = kernel(dy, x, width, mean, rstd, *vectors, [wanted[0], False, False])[0]
    weight, bias = (None if each is None else each.float() for each in vectors)
    sums: list[torch.Tensor | None] = [None, None]
    for first in range(0, len(x), ROWS):
        rows = slice(first, first + ROWS)
        parts = (each[rows].float() for each in (dy, x))
        here = kernel(*parts, width, mean[rows].float(), rstd[rows].float(), weight, bias, [False, *wanted[1:]])[1:]
        sums = [one if total is None else total.add_(one) for total, one in zip(sums, here, strict=True)]
    return dx, sums[0], sums[1]


class _LayerNorm(torch.autograd.Function):
    """Layer norm of narrow numbers on a CPU."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, epsilon: float
    ) -> torch.Tensor:
        output, mean, rstd = torch.native_layer_norm(x, [x.shape[1]], weight, bias, epsilon)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        wanted = (True, ctx.needs_input_grad[1], ctx.needs_input_grad[2])
        dx, dweight, dbias = norm_gradient(gradient.contiguous(), x, mean, rstd, (weight, bias), wanted)
        rounded = (None if each is None else each.to(weight.dtype) for each in (dweight, dbias))
        return dx, *rounded, None


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Normalise each row of x (rows, width), differentiably."""
    if narrow(x):
        found: torch.Tensor = _LayerNorm.apply(x, weight, bias, epsilon)
        return found
    return functional.layer_norm(x, (x.shape[1],), weight, bias, epsilon)


class _Lookup(torch.autograd.Function):
    """Rows of a narrow table on a CPU."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.count = len(table)
        return functional.embedding(rows, table)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        (rows,) = ctx.saved_tensors
        rows = rows.reshape(-1)
        ordered, order = rows.sort()
        changes = torch.ones_like(rows)
        changes[1:] = ordered[1:] != ordered[:-1]
        group = torch.empty_like(rows)
        group[order] = changes.cumsum(0) - 1  # tokens of a group are of one row; no shape depends on how many there are
        values = gradient.reshape(rows.numel(), -1)
        total = gradient.new_zeros(ctx.count, values.shape[1])
        for first in range(0, values.shape[1], COLUMNS):
            part = values[:, first : first + COLUMNS].float()
            sums = torch.zeros_like(part).index_add_(0, group, part)
            total[rows, first : first + COLUMNS] = sums.to(total.dtype)[group]  # a row's tokens write the same
        return None, total


def lookup(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return rows of a table (count, width) by number, differentiably."""
    if narrow(table):
        found: torch.Tensor = _Lookup.apply(rows, table)
        return found
    return functional.embedding(rows, table)
