"""Middle values that a few outliers do not move, and how surprising an outlier is."""

from __future__ import annotations

import math

import numpy as np

from twin.diagnose.observed import Floats

TO_DEVIATION = 1.4826
"""The standard deviation of normal values by their median absolute deviation."""
OF_MEDIAN = 1.2533
"""The standard error of a median by that of the mean."""
MANY = 200
"""With more degrees of freedom, Student's distribution is taken as normal."""


def scale(values: Floats, axis: int | None = None) -> Floats:
    """Estimate the standard deviation from the median absolute deviation, along an axis."""
    middle = np.median(values, axis=axis, keepdims=True)
    return np.asarray(TO_DEVIATION * np.median(np.abs(values - middle), axis=axis))


def median_error(values: Floats) -> float:
    """Estimate the standard error of the medians of columns, (n, columns); one for all columns."""
    if len(values) < 2:
        return 0.0
    return float(np.median(scale(values, axis=0))) * OF_MEDIAN / math.sqrt(len(values))


def chance_of_more(score: float, freedom: int) -> float:
    """Return the probability that a Student-distributed value exceeds `score` (Abramowitz & Stegun 26.7.3, 26.7.4).

    >>> round(chance_of_more(2.365, 7), 4), round(chance_of_more(1.96, 10_000), 4), chance_of_more(0.0, 3)
    (0.025, 0.025, 0.5)
    """
    if score < 0:
        return 1.0 - chance_of_more(-score, freedom)
    if freedom > MANY:
        return 0.5 * math.erfc(score / math.sqrt(2))
    angle = math.atan(score / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    if freedom == 1:
        total = 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, (1.0 - inside) / 2)


def confidence(score: float, freedom: int, hypotheses: int) -> float:
    """One minus the chance that any of so many healthy parts scores as high, at most 0.999."""
    return min(0.999, max(0.0, 1.0 - hypotheses * chance_of_more(score, max(1, freedom))))
