"""A mixture of data sets, each with a weight: what a job says of it, and which sample is of which set.

Weights in lowest terms are whole numbers, such as 3 and 1, and their sum is the length of a cycle in which every set
has exactly its share. A set of share s takes its j-th sample (from 0) not before floor(j/s) and before
ceil((j+1)/s). Of the sets that may, the one that must soonest does: a rule that never misses such a window where
shares sum to 1 (earliest deadline first, on the windows of Pfair scheduling: Baruah et al. 1996). So after any n
samples each set has more than n·s − 1 and fewer than n·s + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Annotated

from pydantic import Discriminator, Field, Tag

from twin.description.problems import Problem
from twin.description.spec import Spec

MAX_CYCLE = 100_000
"""Samples of a cycle: as many as two weights of five digits make."""


class Weighted(Spec):
    """One data set of a mixture."""

    path: str
    """A data set made by `fourfold data`, or standard-library."""
    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Its share of the samples is this over the sum of all."""


Mixed = tuple[Weighted, ...]


def _kind(value: object) -> str:
    return "a-list" if isinstance(value, list | tuple) else "a-path"


Data = Annotated[Annotated[str, Tag("a-path")] | Annotated[Mixed, Tag("a-list")], Discriminator(_kind)]
"""One path, or a list of data sets with weights."""


def parts_of(data: str | Mixed) -> Mixed:
    """Return a job's data sets: one, or those of a mixture."""
    return (Weighted(path=data),) if isinstance(data, str) else data


def whole_weights(parts: Mixed) -> tuple[int, ...]:
    """Return the weights as whole numbers in lowest terms, exactly as they were written.

    >>> whole_weights((Weighted(path="a", weight=0.6), Weighted(path="b", weight=0.2)))
    (3, 1)
    """
    exact = [Fraction(repr(part.weight)) for part in parts]
    scale = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    return tuple(weight // gcd(*whole) for weight in whole)


def cycle(weights: Sequence[int]) -> Iterator[int]:
    """Yield the number of the set of each sample of a cycle, for weights in lowest terms.

    >>> list(cycle((3, 1, 1)))
    [0, 0, 1, 0, 2]
    """
    total, taken = sum(weights), [0] * len(weights)
    for sample in range(total):
        due = [
            (-(-(taken[k] + 1) * total // weight), k)
            for k, weight in enumerate(weights)
            if taken[k] * total // weight <= sample
        ]
        _, soonest = min(due)
        taken[soonest] += 1
        yield soonest


def check_data(data: str | Mixed) -> list[Problem]:
    """Return what is wrong with the data of a job."""
    if isinstance(data, str):
        return []
    if not data:
        return [Problem("train.data", "is an empty list; give data sets, such as [{path: DIR, weight: 3}]")]
    problems = []
    for number, part in enumerate(data):
        key = f"train.data.{number}.path"
        if not part.path:
            problems.append(Problem(key, "is empty; give the directory of a data set", part.path))
        elif part.path in [before.path for before in data[:number]]:
            remedy = "is given twice, and would be read in step with itself; give it once, with the sum of the weights"
            problems.append(Problem(key, remedy, part.path))
    if (length := sum(whole_weights(data))) > MAX_CYCLE:
        remedy = f"come to whole numbers whose sum is {length:,}, above {MAX_CYCLE:,}; give weights of fewer digits"
        problems.append(Problem("train.data", f"its weights {remedy}", ", ".join(f"{part.weight:g}" for part in data)))
    return problems
