"""Functions of a GPT that are the same on every grid: activations and rotary positions.

* Rotary positions turn pairs (i, i + d/2) of each head's d features (Su et al. 2021).
"""

from __future__ import annotations

import torch

from runtime.parallel.region import plus

INIT = 0.02
"""Standard deviation of weights at the start, as in GPT-2."""
NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0


def gelu(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """GELU of x + bias by its tanh approximation, as GPT-2 has it."""
    return torch.nn.functional.gelu(plus(x, bias), approximate="tanh")


def swiglu(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply silu of the first half of x + bias by the second half (Shazeer 2020)."""
    gate, up = plus(x, bias).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def rotary_angles(length: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine (s, d/2) of each position's turn in each plane, in float64."""
    speed = ROTARY_BASE ** (-torch.arange(0, size, 2, device=device, dtype=torch.float64) / size)
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * speed
    return angle.cos(), angle.sin()


def turned(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn (sequences, s, heads, d) by the angles of `rotary_angles`."""
    # (sequences, s, heads, d): the two halves of d are the two coordinates of each plane
    wide = torch.promote_types(x.dtype, torch.float32)
    cosine, sine = (angle[None, :, None, :].to(wide) for angle in angles)
    first, second = x.to(wide).chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(x.dtype)
