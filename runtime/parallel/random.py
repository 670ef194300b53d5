"""Random numbers by address: the number of an element depends on its place in the full tensor.

So every grid starts from the same weights and drops the same activations, a recomputed block
sees the mask it saw before, and a resumed run needs no generator state. The hash is the
finaliser of SplitMix64 (Steele, Lea, Flood 2014), on int64 tensors that wrap around. Of a dropout mask
rows and columns are hashed so, once; an element's number is made of theirs in three passes over 32 bits.
"""

from __future__ import annotations

import hashlib
import math
from typing import TypeAlias

import torch

Numbers: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Two int32 numbers of each row or column."""

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


def numbers(addresses: torch.Tensor) -> Numbers:
    """Draw two int32 numbers for each int64 address."""
    bits = mix(addresses)
    return bits.to(torch.int32), (bits >> 32).to(torch.int32)


def keep_mask(rows: torch.Tensor, columns: torch.Tensor, stream: int, drop: float) -> torch.Tensor:
    """Say which elements (rows × columns, by full address) dropout keeps, as booleans.

    `rows` (m,) and `columns` (n,) are int64 addresses; each element is dropped with probability
    `drop`.
    """
    return kept_in_steps(*lines(numbers(rows), stream), numbers(columns)[0], least_kept(drop))


def lines(rows: Numbers, stream: int) -> Numbers:
    """Draw a line for each row from its `numbers`, another one in each stream: begin and slope, modulo 2³²."""
    digest = hashlib.sha256(stream.to_bytes(8, "little", signed=True)).digest()
    keys = [int.from_bytes(digest[i : i + 4], "little", signed=True) for i in range(0, 16, 4)]
    begin, slope = rows
    return (begin * (keys[0] | 1)).add_(keys[1]), (slope * (keys[2] | 1)).add_(keys[3])


def least_kept(drop: float) -> int:
    """Return the least of all int32 numbers for which an element is kept."""
    return min(int(drop * 2.0**32), 2**32 - 1) - 2**31


def kept(begin: torch.Tensor, slope: torch.Tensor, columns: torch.Tensor, least: int) -> torch.Tensor:
    """Say which elements are kept: of each row (m,) a line at the columns' numbers (n,), mixed, is not below `least`.

    The mixing is v·(2v + 1) modulo 2³², which gives every number once and whose upper bits depend on all bits of v
    (as in RC6; Rivest, Robshaw, Sidney, Yin 1998).
    """
    bits = begin[:, None] + slope[:, None] * columns
    return bits * (2 * bits + 1) >= least


def kept_in_steps(begin: torch.Tensor, slope: torch.Tensor, columns: torch.Tensor, least: int) -> torch.Tensor:
    """`kept` in three kernels. Not to be compiled: torch.compile takes the 2 below for a float."""
    bits = torch.addcmul(begin[:, None], slope[:, None], columns)
    return bits.addcmul_(bits, bits, value=2) >= least
