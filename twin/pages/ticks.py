"""Where the ticks of a logarithmic axis stand: Plotly gives powers of ten alone, and none where there is none."""

from __future__ import annotations

import math

FEWEST = 3
"""Ticks of an axis, if closer ones are known."""
DIGITS = (
    (1.0,),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    tuple(half / 2 for half in range(2, 20)),
    tuple(tenth / 10 for tenth in range(10, 100)),
)
"""Of each power of ten, from far apart to close."""


def log_ticks(least: float, most: float) -> list[float]:
    """Return ticks between two values above 0: the widest apart of which there are three.

    >>> log_ticks(13.5, 51.0), log_ticks(0.004, 70.0), log_ticks(9.0, 9.3)
    ([15.0, 20.0, 30.0, 50.0], [0.01, 0.1, 1.0, 10.0], [9.0, 9.1, 9.2, 9.3])
    """
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    found: list[float] = []
    for digits in DIGITS:
        ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
        found = [tick for tick in ticks if least <= tick <= most]
        if len(found) >= FEWEST:
            break
    return found
