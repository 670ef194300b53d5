"""The simplest predictor there is: one constant model FLOPs utilisation (MFU) for all rows of a source.

It is chosen with hindsight, from the times it then predicts, so no model can be called good that does
not beat it. Row i, measured to run at MFU aᵢ, is predicted 1/MFU · aᵢ times as long as it took: the mean
of |aᵢ·u − 1| over the rows is convex and piecewise linear in u = 1/MFU, and least where u is the
median of 1/aᵢ weighted by aᵢ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def best_constant_mfu(measured: Sequence[float]) -> tuple[float, float]:
    """Return the constant MFU of least mean absolute error of the time, and that error.

    `measured` holds the MFU that each row was measured to run at; all above 0.

    >>> best, error = best_constant_mfu([0.5, 0.5, 0.4])
    >>> best, round(error, 4)
    (0.5, 0.0667)
    """
    rates = np.sort(np.array(measured, dtype=float))[::-1]  # 1/a ascending
    half = np.searchsorted(np.cumsum(rates), rates.sum() / 2)
    best = float(rates[min(int(half), len(rates) - 1)])
    return best, float(np.abs(rates / best - 1.0).mean())
