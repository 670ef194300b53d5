"""How many blocks a search lets be computed again, or keep their gathered weights."""

from __future__ import annotations

from twin.strategies.four_d.job import FourDJob


def recompute_levels(job: FourDJob) -> tuple[int | None, ...]:
    """All blocks, and a quarter, half and three quarters of them."""
    layers = job.model.layers
    return (None, *sorted({layers * part // 4 for part in (1, 2, 3)} - {0, layers}))


def cache_levels(job: FourDJob) -> tuple[int, ...]:
    """No block, a quarter, half, and all of them."""
    layers = job.model.layers
    return tuple(sorted({0, layers // 4, layers // 2, layers}))
