"""RMS norm of rows that are whole, the same in every strategy.

On a GPU it is PyTorch's own kernel, which has no backward pass for CPUs: there it is that of layer norm with means of
zero, and what was subtracted for the mean of the gradient is added again.
"""

from __future__ import annotations

import torch

from runtime.model.narrow_sums import norm_gradient


def squared(x: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Sum the squares of each row, (rows, 1)."""
    found: torch.Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=wide).square_()
    return found


def reciprocal(squares: torch.Tensor, width: int, epsilon: float) -> torch.Tensor:
    """Return one over the root of the mean square."""
    return torch.rsqrt(squares / width + epsilon)


def scaled(x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply each row of x by its scale, round, and multiply by the weight."""
    return torch.mul(x, scale, out=torch.empty_like(x)).mul_(weight)


def passes(kind: str) -> tuple[int, int]:
    """Count how often what is normalised is read or written by `normalized` and by `input_gradient`, on a device."""
    return (5, 6) if kind == "cpu" else (2, 3)


def normalized(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, wide: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise each row of x (rows, width); also returns the reciprocal roots of mean squares, (rows, 1)."""
    if x.device.type != "cpu":
        fused: tuple[torch.Tensor, torch.Tensor] = torch.ops.aten._fused_rms_norm(x, [x.shape[1]], weight, epsilon)
        return fused
    scale = reciprocal(squared(x, wide), x.shape[1], epsilon)
    return scaled(x, scale, weight), scale


def input_gradient(
    dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, *, frozen: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of x (rows, width) and, summed over rows, of the weight if it trains.

    `scale` is (rows, 1).
    """
    width = x.shape[1]
    if x.device.type != "cpu":
        fused: tuple[torch.Tensor, torch.Tensor | None] = torch.ops.aten._fused_rms_norm_backward(
            dy, x, [width], scale, weight, [True, not frozen]
        )
        return fused
    vectors = weight.to(scale.dtype), None
    dx, dweight, _ = norm_gradient(dy, x, torch.zeros_like(scale), scale, vectors, (True, not frozen, False))
    dx.add_((dy @ weight).to(scale.dtype)[:, None] * scale / width)
    return dx, dweight
