"""What a comparison of predictions with measurements says: its rows, and the errors of groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Group:
    """Errors of one group of rows; errors are |predicted − measured| / measured."""

    name: str
    count: int
    median: float
    mean: float
    p90: float
    bias: float
    """Mean of the signed errors."""


@dataclass(frozen=True)
class IterationGroup(Group):
    """Errors of the training iterations of one source, and what they are to be read against."""

    inside: float
    """Share of the rows whose measured time lies inside the twin's interval."""
    constant_mfu_mean: float
    """Mean error of one constant model FLOPs utilisation, chosen with these rows in hand."""


@dataclass(frozen=True)
class Validation:
    """A whole table compared."""

    kind: str
    groups: list[Group]
    rows: list[dict[str, Any]]
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason → number of rows."""
    pieces: list[Piece] = field(default_factory=list)
    """What else the rows give: times of layers, peak memory."""


@dataclass(frozen=True)
class Piece:
    """One published figure that is no iteration's time beside the twin's, both in the same unit."""

    id: str
    source: str
    kind: str
    what: str
    """Of what, and the unit."""
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted / self.measured - 1.0

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in what `validate` prints."""
        return {**vars(self), "error": self.error}


def by_kind(pieces: Sequence[Piece]) -> list[Group]:
    """Summarise pieces by kind and source."""
    errors: dict[str, list[float]] = {}
    for piece in pieces:
        errors.setdefault(f"{piece.kind}: {piece.source}", []).append(piece.error)
    return [summary(name, found) for name, found in errors.items()]


def summary(name: str, errors: Sequence[float]) -> Group:
    """Summarise signed relative errors."""
    size = np.abs(np.array(errors))
    return Group(
        name,
        len(size),
        float(np.median(size)),
        float(size.mean()),
        float(np.percentile(size, 90)),
        float(np.mean(errors)),
    )


def is_measure(value: Any) -> bool:
    """Tell whether what a file has is a number that can have been measured: finite, and above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
