"""What a job's first role moves beyond its devices."""

from __future__ import annotations

from collections import Counter
from typing import Any

from twin.schedule.ops import Start
from twin.strategies import strategy_of


def named(job: Any) -> list[Any]:
    """Return its ops with their full names."""
    strategy = strategy_of(job)
    return list(strategy.schedule(job, strategy.roles(job)[0]).named())


def moved(job: Any) -> Counter[str]:
    """Return the bytes of each kind of what it starts."""
    found: Counter[str] = Counter()
    for _, op in named(job):
        if isinstance(op, Start):
            found[op.kind] += round(op.bytes)
    return found
