"""Functions of a GPT that are the same on every grid: activations and rotary positions.

* Rotary positions turn pairs (i, i + d/2) of each head's d features (Su et al. 2021).
"""

from __future__ import annotations

import math

import torch

from runtime.parallel.region import plus
from twin.description.model import Model

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


def rotary_speeds(model: Model) -> torch.Tensor:
    """Radians (d/2,) that each plane turns from a position to the next, float64 on the CPU."""
    size, scaling = model.rotary_size, model.rotary_scaling
    speeds = model.rotary_base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if scaling is None:
        return speeds
    if scaling.kind == "linear":
        return speeds / scaling.factor
    # turns over the sequences first trained on: few of them are slowed, many are not, between is a ramp
    turns = scaling.original_sequence * speeds / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * speeds + (1 - kept) * speeds / scaling.factor


def rotary_angles(model: Model, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine (s, d/2) of each position's turn in each plane, in float64."""
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * rotary_speeds(model).to(device)
    return angle.cos(), angle.sin()


def turned(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn (sequences, s, heads, d) by the angles of `rotary_angles`: of each head as many elements as have one.

    Angles are (s, d/2), or (sequences, s, d/2) where each sequence has its own.
    """
    # (sequences, s, heads, d): the two halves of what is turned are the two coordinates of each plane
    wide = torch.promote_types(x.dtype, torch.float32)
    cosine, sine = (angle.unsqueeze(-2).to(wide) for angle in angles)
    size = 2 * cosine.shape[-1]
    first, second = x[..., :size].to(wide).chunk(2, -1)
    parts = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat((*parts, x[..., size:].to(wide)) if size < x.shape[-1] else parts, -1).to(x.dtype)
