"""The order of training: a permutation of the windows for every epoch, without a table.

A window's two mixed-radix digits (left, right) are shifted in turn, each by a hash of the other:
a Feistel network with addition instead of exclusive-or. Every round can be undone, so the whole
is a permutation of `left_size · right_size` numbers, a few more than there are windows; a number
that lands beyond the last window goes through again until it does not (cycle walking).
Any sample's window is thus known at once, from the seed and the sample's number alone.
"""

from __future__ import annotations

from hashlib import shake_256
from math import isqrt

import numpy as np
from numpy.typing import NDArray

ROUNDS = 16
"""With a 64-bit key each. From 16 on, all orders of a handful of windows are equally likely as far
as a chi-squared test sees; 8 are too few for that."""

_SHIFT = np.uint64(31)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def shuffled(places: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return where a permutation of 0 … size-1 sends each place; the arrays have equal shapes.

    Each (seed, epoch) has its own permutation.

    >>> sorted(shuffled(np.arange(5), 5, seed=1, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    keys = _keys(seed, epoch)
    found = _permute(places.astype(np.uint64), size, keys)
    while (beyond := found >= size).any():
        found[beyond] = _permute(found[beyond], size, keys)
    return found.astype(np.int64)


def _keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    digest = shake_256(f"{seed} {epoch}".encode()).digest(8 * ROUNDS)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _permute(numbers: NDArray[np.uint64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left_size = np.uint64(isqrt(size - 1) + 1)
    right_size = np.uint64(-(-size // int(left_size)))
    left, right = np.divmod(numbers, right_size)
    for first, second in keys.reshape(-1, 2):
        left = (left + _hash(right ^ first) % left_size) % left_size
        right = (right + _hash(left ^ second) % right_size) % right_size
    return left * right_size + right


def _hash(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix all bits (the finalizer of SplitMix64); products wrap at 2^64 as they should."""
    mixed = (numbers ^ (numbers >> _SHIFT)) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX_2
    return mixed ^ (mixed >> _SHIFT)
