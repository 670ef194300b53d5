"""How many examples a property is tried with: the profile says it, a test only more or less than that.

- `quick`: few, the same every time; what `make test` runs.
- `full`: a hundred, or what a test asks for; what everything else runs, also pytest on its own.

`pytest --hypothesis-profile=quick` chooses. No example has a time limit: this measures the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")
NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", NO_CLOCK, max_examples=10, derandomize=True)
settings.register_profile("full", NO_CLOCK, max_examples=100)
settings.load_profile("full")


def examples(factor: float = 1.0, **more: Any) -> settings:
    """Try a property with so many times the examples of the profile, and at least with two."""
    return settings(max_examples=scaled(settings.default.max_examples * factor), **more)


def share(count: int) -> int:
    """Take the profile's share of a count that the full profile would take whole."""
    return scaled(count * settings.default.max_examples / settings.get_profile("full").max_examples)


def part(cases: Sequence[T], count: int) -> list[T]:
    """Take so many of the cases that a test goes through in the quick profile, evenly spread and the last among them.

    Every other profile takes all.
    """
    if settings.default.max_examples >= settings.get_profile("full").max_examples or count >= len(cases):
        return list(cases)
    return [cases[(number + 1) * len(cases) // count - 1] for number in range(count)]


def scaled(count: float) -> int:
    """Round, to two at least: with one example a property is a case."""
    return max(2, round(count))
