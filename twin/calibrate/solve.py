"""Robust least squares on relative errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ROBUST = 0.2
"""Relative error beyond which a row counts less than quadratically."""
ROUNDS = 20


@dataclass(frozen=True)
class Fitted:
    """A constant, its relative standard error, and from how many rows it comes."""

    value: float
    error: float
    rows: int


@dataclass(frozen=True)
class Quality:
    """Misses of the rows: absolute relative errors."""

    rows: int
    median: float
    high: float
    """90th percentile."""

    @classmethod
    def of(cls, predicted: Array, measured: Array) -> Quality:
        """Compare."""
        if not len(measured):
            return cls(0, float("nan"), float("nan"))
        error = np.abs(predicted / measured - 1)
        return cls(len(measured), float(np.median(error)), float(np.quantile(error, 0.9)))

    def __str__(self) -> str:
        return f"{self.rows} rows, median {self.median:.1%}, 90 % below {self.high:.1%}"


def fit(
    model: Callable[[Mapping[str, float]], Array],
    measured: Array,
    start: Mapping[str, float],
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> tuple[dict[str, Fitted], Quality]:
    """Fit positive constants so that `model(constants)` meets `measured` (rows,) in relative terms."""
    from scipy.optimize import least_squares  # noqa: PLC0415 (twin does not depend on scipy)

    names = list(start)
    limits = bounds or {}
    centre = np.log([start[name] for name in names])
    low = np.log([limits.get(name, (start[name] / 1e3, 0))[0] for name in names])
    high = np.log([limits.get(name, (0, start[name] * 1e3))[1] for name in names])

    def constants(x: Array) -> dict[str, float]:
        return dict(zip(names, np.exp(x).tolist(), strict=True))

    def residuals(x: Array) -> Array:
        return np.asarray(np.log(model(constants(x)) / measured))

    found = least_squares(
        residuals,
        np.clip(centre, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=ROBUST,
        diff_step=1e-3,
        max_nfev=200,
    )
    spread = float(np.median(np.abs(residuals(found.x))) * 1.4826) ** 2
    told = np.abs(found.jac).sum(axis=0) > 1e-9
    deviation = np.full(len(names), np.inf)
    covariance = np.linalg.pinv(found.jac[:, told].T @ found.jac[:, told], hermitian=True) * spread
    deviation[told] = np.sqrt(np.maximum(np.diag(covariance), 0))
    best = constants(found.x)
    fitted = {
        name: Fitted(best[name], float(error), len(measured)) for name, error in zip(names, deviation, strict=True)
    }
    return fitted, Quality.of(model(best), measured)


def line(amounts: Sequence[float], seconds: Sequence[float]) -> tuple[Fitted, Fitted, Quality]:
    """Fit seconds = start + amount / rate, start at least 0; returns start, rate and the quality."""
    from scipy.optimize import nnls  # noqa: PLC0415

    amount, measured = np.asarray(amounts, dtype=float), np.asarray(seconds, dtype=float)
    scale = float(amount.max()) or 1.0
    columns = np.stack((np.ones_like(measured), amount / scale), axis=1) / measured[:, None]
    weight = np.ones(len(measured))
    found = np.zeros(2)
    for _ in range(ROUNDS):  # reweighted: soft_l1
        found, _ = nnls(columns * weight[:, None], weight)
        weight = (1 + ((columns @ found - 1) / ROBUST) ** 2) ** -0.25
    spread = float(np.median(np.abs(columns @ found - 1)) * 1.4826)
    covariance = np.linalg.pinv(columns.T @ columns, hermitian=True)
    error = np.sqrt(np.maximum(np.diag(covariance), 0)) * spread
    start, slope = (float(f) for f in found)
    rows = len(measured)
    rate = scale / slope if slope > 0 else scale / float(measured.min()) * 1e3
    return (
        Fitted(start, float(error[0] / start) if start else 0.0, rows),
        Fitted(rate, float(error[1] / slope) if slope else float("inf"), rows),
        Quality.of(start + amount / rate, measured),
    )
