"""Random numbers by address: the number of an element depends on its place in the full tensor.

So every grid starts from the same weights and drops the same activations, a recomputed block
sees the mask it saw before, and a resumed run needs no generator state. The hash is the
finaliser of SplitMix64 (Steele, Lea, Flood 2014), on int64 tensors that wrap around.
"""

from __future__ import annotations

import hashlib
import math

import torch

_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
MAX_ELEMENTS = 1 << 22
"""Elements drawn at once, to bound the memory of int64 intermediates."""


def key(*parts: object) -> int:
    """Make a 64-bit key from whatever names the use: seed, parameter, step."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)


def mix(values: torch.Tensor) -> torch.Tensor:
    """Hash int64 elementwise."""
    values = values * _GAMMA
    values = (values ^ _shift(values, 30)) * _FIRST
    values = (values ^ _shift(values, 27)) * _SECOND
    return values ^ _shift(values, 31)


def _shift(values: torch.Tensor, bits: int) -> torch.Tensor:
    # int64 shifts keep the sign; the mask makes it the shift of an unsigned number
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def normal(indices: torch.Tensor, stream: int) -> torch.Tensor:
    """Standard normal numbers (float64) for int64 addresses, by Box and Muller."""
    bits = mix(indices + stream)
    radius = (_shift(bits, 32) + 1).double() / 2.0**32  # in (0, 1]
    angle = (bits & 0xFFFFFFFF).double() * (2 * math.pi / 2.0**32)
    return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(angle)


def uniform(indices: torch.Tensor, stream: int) -> torch.Tensor:
    """Numbers (float64) of a uniform distribution of mean 0 and deviation 1, for int64 addresses."""
    bits = mix(indices + stream)
    return (_shift(bits, 32).double() / 2.0**31 - 1.0) * math.sqrt(3.0)


def keep_mask(rows: torch.Tensor, columns: torch.Tensor, stream: int, drop: float) -> torch.Tensor:
    """Say which elements (rows × columns, by full address) dropout keeps, as booleans.

    `rows` (m,) and `columns` (n,) are int64 addresses; each element is dropped with probability
    `drop`.
    """
    bits = mix(mix(rows + stream)[:, None] + columns)
    return (bits & 0xFFFFFFFF) >= int(drop * 2.0**32)
