"""How well a text was repeated, from the tokens that it ends with and those that the model wrote instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Repeated:
    """One text, judged by its suffix of n tokens."""

    exact: bool
    """All n tokens are right."""
    accuracy: float
    """Share of places with the right token."""
    subsequence: float
    """Length of the longest common subsequence over n, on tokens: RougeL, whose precision and recall are equal here."""
    first_error: int | None
    """The first place with a wrong token, from 0; None if all are right."""
    first_drop: int | None
    """The first place that never counted in training; None if all did, or the mask is drawn anew each time."""
    at_drop: bool | None
    """True if the first error is at a place that never counted; None without an error, or without such a mask."""

    def as_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


def judge(true: Sequence[int], written: Sequence[int], dropped: Sequence[bool] | None) -> Repeated:
    """Judge one text; the sequences are equally long. `dropped` says which places never counted, if that is known.

    >>> judge([5, 6, 7, 8], [5, 6, 9, 7], [False, False, True, False])
    Repeated(exact=False, accuracy=0.5, subsequence=0.75, first_error=2, first_drop=2, at_drop=True)
    """
    right = [a == b for a, b in zip(true, written, strict=True)]
    error = right.index(False) if False in right else None
    known = dropped is not None
    drops = list(dropped or ())
    return Repeated(
        exact=error is None,
        accuracy=sum(right) / len(right),
        subsequence=common_subsequence(true, written) / len(right),
        first_error=error,
        first_drop=drops.index(True) if True in drops else None,
        at_drop=None if error is None or not known else bool(drops[error]),
    )


def common_subsequence(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common subsequence.

    >>> common_subsequence([1, 2, 3, 4, 5], [2, 9, 4, 5, 1])
    3
    """
    best = [0] * (len(other) + 1)  # of what of `one` was seen, and each beginning of `other`
    for token in one:
        above = best
        best = [0]
        for place, there in enumerate(other):
            best.append(above[place] + 1 if token == there else max(above[place + 1], best[-1]))
    return best[-1]
