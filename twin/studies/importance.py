"""Which factor of a full-factorial study matters: Shapley values of its points, exact, without a surrogate.

With every combination simulated, the mean of the objective over all points that share the values of some factors,
E[y | x_S], is an average over the grid, and so is every figure here. Values count alike, factors are independent.

* `shapley_share`: the variance of the objective, shared out among the factors (the Shapley effects of Owen, 2014,
  doi:10.1137/130936233): what a factor adds to Var E[y | x_S], averaged over all orders in which factors become known.
  The shares add up to 1, whatever interacts.
* `first_order_share`, `total_share`: Sobol's: of the factor alone, and of all in which it takes part.
* `mean_absolute`: the mean of |SHAP value| over the points, in the objective's unit (arXiv 1705.07874).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial

import numpy as np
import numpy.typing as npt

from twin.studies.derived import Row, label_of
from twin.studies.description import Study
from twin.studies.objective import ObjectiveName, feasible, is_rate, penalty, without

MAX_FACTORS = 10
"""More would be more than a thousand coalitions of each point."""
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """One value of a factor, over all points that have it."""

    value: str
    mean: float
    """Of the objective, points that cannot run counting as the penalty."""
    feasible_share: float
    best: float | None
    """Of the points that can run; None if none can."""


@dataclass(frozen=True)
class Factor:
    """How much one factor matters."""

    name: str
    shapley_share: float
    first_order_share: float
    total_share: float
    mean_absolute: float
    feasibility_share: float
    """The same as `shapley_share`, of whether a point can run at all."""
    levels: tuple[Level, ...]

    def best_level(self, objective: ObjectiveName) -> Level:
        """Return the value with the best mean; of equal ones the first."""
        best = max if is_rate(objective) else min
        return best(self.levels, key=lambda level: level.mean)


@dataclass(frozen=True)
class Importance:
    """The factors of a study, the one that matters most first."""

    objective: ObjectiveName
    factors: tuple[Factor, ...]
    points: int
    feasible: int
    penalty: float
    """What a point counts that cannot run: the worst of those that can."""


def importance(study: Study, rows: Sequence[Row]) -> Importance | None:
    """Work out which factor of a sweep matters; None where its points are no full grid of several factors.

    A point that crashed is no failure of its job: with one, or without any that can run, there is no answer. Nor is
    there one where a point that can run has no objective: what its device draws may not be known.
    """
    lengths = {key: len(values) for key, values in study.vary.items()}
    names = [key for key, length in lengths.items() if length > 1]
    able = [row for row in rows if feasible(row)]
    unknown = study.study != "sweep" or study.points or any(row["status"] == "crashed" for row in rows)
    unknown = unknown or bool(without(rows, study.objective))
    if unknown or not able or not 2 <= len(names) <= MAX_FACTORS:
        return None
    worst = penalty([row[study.objective] for row in able], study.objective)
    values = [row[study.objective] if feasible(row) else worst for row in rows]
    shape = [lengths[name] for name in names]
    grid = np.array(values, dtype=np.float64).reshape(shape)
    runs = np.array([feasible(row) for row in rows], dtype=np.float64).reshape(shape)
    named = np.array(range(len(rows))).reshape(shape)
    means, chances = conditional_means(grid), conditional_means(runs)
    effects = variances(means)
    shares, feasibility_shares = _shares(effects), _shares(variances(chances))
    total = effects[-1]
    found = []
    for at, name in enumerate(names):
        own, others = 1 << at, len(effects) - 1 - (1 << at)
        # the first point with each value: its label is the value's
        firsts = np.moveaxis(named, at, 0).reshape(shape[at], -1)[:, 0]
        level = [
            Level(str(label_of(rows[i], name)), float(mean), float(chance), _best(study.objective, slab, able))
            for i, mean, chance, slab, able in zip(
                firsts,
                means[own].ravel(),
                chances[own].ravel(),
                np.moveaxis(grid, at, 0),
                np.moveaxis(runs, at, 0),
                strict=True,
            )
        ]
        found.append(
            Factor(
                name,
                float(shares[at]),
                float(effects[own] / total) if total > 0 else 0.0,
                float(1.0 - effects[others] / total) if total > 0 else 0.0,
                float(np.abs(_local(means, at)).mean()),
                float(feasibility_shares[at]),
                tuple(level),
            )
        )
    found.sort(key=lambda factor: -factor.shapley_share)
    return Importance(study.objective, tuple(found), len(rows), len(able), worst)


def shapley_values(worth: Sequence[float] | Array) -> Array:
    """Return the Shapley value of each player, given the worth of each coalition by its bits.

    >>> shapley_values([0.0, 1.0, 2.0, 5.0]).tolist()
    [2.0, 3.0]
    """
    game = np.asarray(worth, dtype=np.float64)
    players = len(game).bit_length() - 1
    weights = _weights(players)
    coalitions = np.arange(len(game))
    sizes = np.array([int(c).bit_count() for c in coalitions])
    found = []
    for player in range(players):
        without = coalitions[(coalitions >> player) & 1 == 0]
        gains = game[without | (1 << player)] - game[without]
        found.append(float(weights[sizes[without]] @ gains))
    return np.array(found)


def conditional_means(grid: Array) -> list[Array]:
    """Return E[y | x_S] of a full grid for every coalition S of its axes, by its bits; other axes have size 1."""
    every = range(grid.ndim)
    return [
        grid.mean(axis=tuple(axis for axis in every if not coalition >> axis & 1), keepdims=True)
        for coalition in range(1 << grid.ndim)
    ]


def variances(means: Sequence[Array]) -> Array:
    """Return Var E[y | x_S] for every coalition: 0 of none, the variance of the grid of all."""
    if np.ptp(means[-1]) == 0:  # rounding would leave a little
        return np.zeros(len(means))
    return np.array([float(mean.var()) for mean in means])


def _best(objective: ObjectiveName, values: Array, able: Array) -> float | None:
    """Return the best of the values that can run."""
    ready = values[able > 0]
    return None if not ready.size else float(ready.max() if is_rate(objective) else ready.min())


def _shares(worth: Array) -> Array:
    values = shapley_values(worth)
    return values / worth[-1] if worth[-1] > 0 else np.zeros_like(values)


def _local(means: Sequence[Array], player: int) -> Array:
    """Return the SHAP value of one factor at every point."""
    every = means[-1]
    weights = _weights(every.ndim)
    found = np.zeros_like(every)
    for coalition in range(len(means)):
        if not coalition >> player & 1:
            gain = means[coalition | 1 << player] - means[coalition]
            found += weights[coalition.bit_count()] * gain
    return found


def _weights(players: int) -> Array:
    """Return the share of orders in which exactly so many given players come before another one."""
    orders = factorial(players)
    return np.array([factorial(n) * factorial(players - 1 - n) / orders for n in range(players)])
