"""What closed forms say: each of n places never counts with probability 1/k, independently of the others.

That is the hash on text without repetitions. A model that knows every place that counts, and guesses one that does not
right with probability g, writes all n tokens right with probability (1 − (1 − g)/k)^n.
"""

from __future__ import annotations

from math import expm1, log1p


def all_right(k: int | None, n: int, guess: float = 0.0) -> float:
    """Probability that all n tokens are right; with guess 0, that no place is dropped.

    >>> all_right(4, 2), all_right(None, 32), all_right(2, 1, guess=0.5)
    (0.5625, 1.0, 0.75)
    """
    return 1.0 if k is None else (1 - (1 - guess) / k) ** n


def right_before_error(k: int | None, n: int, guess: float = 0.0) -> float:
    """Expected number of right tokens before the first error, of n.

    The sum of (1 − q)^i over i = 1 … n, where q = (1 − guess)/k.

    >>> right_before_error(2, 2), right_before_error(None, 32)
    (0.75, 32.0)
    """
    if k is None or guess >= 1:
        return float(n)
    q = (1 - guess) / k
    return -(1 - q) / q * expm1(n * log1p(-q))  # as (1 − q)/q · (1 − (1 − q)^n), also where q is next to nothing
