"""What a search varies besides the grid, and which variants differ on a grid.

An option that changes nothing on a grid (caching gathered weights where z is 1, sharding over data
where data is 1) is not varied there: every candidate is another job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeVar, get_args

from twin.description.grid import Grid
from twin.description.job import Job
from twin.description.problems import did_you_mean, fail

T = TypeVar("T")
Varied = Literal["recompute", "cache", "sharding", "overlap", "micro"]
VARIED: tuple[Varied, ...] = get_args(Varied)
ReductionMode = Literal["one_bucket", "overlapped", "sharded"]
MICRO_CHOICES = 3
"""With `micro`: the largest micro-batch that fits, and the next smaller ones, so many in all."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a job that a search may vary; the micro-batch comes with the grid."""

    recompute: bool
    cache_gathered_layers: int
    data_reduction: ReductionMode
    all_reduce: bool
    reduce_scatter: bool
    all_gather: bool

    @classmethod
    def of(cls, job: Job) -> Options:
        """Read them from a job."""
        overlap = job.overlap
        return cls(
            job.recompute,
            job.cache_gathered_layers,
            job.data_reduction.mode,
            overlap.all_reduce,
            overlap.reduce_scatter,
            overlap.all_gather,
        )

    @property
    def overlap(self) -> dict[str, bool]:
        """The overlap switches, as a job has them."""
        return {name: getattr(self, name) for name in ("all_reduce", "reduce_scatter", "all_gather")}

    def on(self, job: Job) -> Job:
        """Return the job with these options."""
        reduction = job.data_reduction.model_copy(update={"mode": self.data_reduction})
        return job.model_copy(
            update={
                "recompute": self.recompute,
                "cache_gathered_layers": self.cache_gathered_layers,
                "data_reduction": reduction,
                "overlap": job.overlap.model_copy(update=self.overlap),
            }
        )


def parse_over(text: str) -> frozenset[Varied]:
    """Read `--over recompute,micro` or `--over all`.

    Raises DescriptionError if a word is not known.

    >>> sorted(parse_over("micro, cache"))
    ['cache', 'micro']
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return frozenset(VARIED)
    for word in words:
        if word not in VARIED:
            raise fail("--over", did_you_mean(word, (*VARIED, "all")), word)
    return frozenset(v for v in VARIED if v in words)


def variants(job: Job, grid: Grid, over: frozenset[Varied]) -> Iterator[Options]:
    """Yield the job's own options and, as far as they differ on this grid, those to vary."""
    own = Options.of(job)
    split = grid.z > 1
    recompute = _first(own.recompute, (True, False), "recompute" in over)
    cache = _first(own.cache_gathered_layers, _cache_levels(job), "cache" in over and split)
    modes = _first(own.data_reduction, get_args(ReductionMode), "sharding" in over and grid.data > 1)
    switches = "overlap" in over
    all_reduce = _first(own.all_reduce, (True, False), switches and (grid.x > 1 or grid.y > 1))
    scatter = _first(own.reduce_scatter, (True, False), switches and split)
    gather = _first(own.all_gather, (True, False), switches and split)
    for choice in product(recompute, cache, modes, all_reduce, scatter, gather):
        yield Options(*choice)


def _cache_levels(job: Job) -> tuple[int, ...]:
    """No block, a quarter, half, and all of them."""
    layers = job.model.layers
    return tuple(sorted({0, layers // 4, layers // 2, layers}))


def _first(own: T, others: tuple[T, ...], varied: bool) -> list[T]:
    """Own value first, then the others if they are wanted."""
    return [own, *(o for o in others if o != own)] if varied else [own]
