"""Every grid of a job's ranks with its variants; what cannot run is kept, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from twin.cost.memory import MemoryUse, memory_use, tier_advice, with_micro_sequences
from twin.description.grid import GridSpec, divisors
from twin.description.job import Job
from twin.description.problems import Problem
from twin.description.units import format_memory
from twin.engine.crew import Workers, done_by, is_here
from twin.search.over import MICRO, MICRO_CHOICES
from twin.strategies import Variant, check_grid, strategy_of

Hindrance = Literal["divisibility", "memory", "size", "refused"]
Refuse = Callable[[Job], str]
"""Says of a job, as candidates are, why whoever searches does not want it; nothing if it may run."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a job: grid, options, micro-batch; or why it cannot run.

    `micro_sequences` is None where a rule of the grid is broken, and 1 where not even one
    sequence at a time fits; `memory` is then of that. `hindrance` says what kind of reason it is:
    a rule of divisibility, memory, a step too long to be simulated, or a refusal of whoever searches.
    """

    grid: GridSpec
    options: Variant
    micro_sequences: int | None = None
    micro_steps: int | None = None
    memory: MemoryUse | None = None
    communication_seconds: float | None = None
    """By what the strategy orders candidates (the published communication model): a rank key, not a time."""
    hindrance: Hindrance | None = None
    reason: str = ""

    @property
    def feasible(self) -> bool:
        """True if it can run."""
        return self.hindrance is None

    def job(self, base: Job) -> Job:
        """Return the job that this candidate is; `base` is what was searched."""
        placed: Job = self.options.on(base.model_copy(update={"grid": self.grid}))
        if self.micro_sequences is None:
            return placed
        return with_micro_sequences(placed, self.micro_sequences)


def unsettled(job: Job, ranks: int | None = None) -> Job:
    """Return the job with grid and micro-batch open, on its own or another number of ranks."""
    batch = job.batch.model_copy(update={"micro_sequences": "auto"})
    return job.model_copy(update={"grid": "auto", "batch": batch, "ranks": ranks or job.ranks})


GRIDS_AT_ONCE, MANY_GRIDS = 16, 256
"""Grids that a process takes at a time, and so many that processes are worth it."""


def candidates(
    job: Job, over: frozenset[str] = frozenset(), only: Mapping[str, frozenset[int]] | None = None, workers: Workers = 1
) -> list[Candidate]:
    """Return every candidate of a job, whatever its own grid is; with its micro-batch if it gives one.

    `only` restricts axes to some sizes; `workers` list many grids. Feasible ones come first, best by the published
    communication model first; then the others in the order of their grids.
    """
    wanted = only or {}
    every = strategy_of(job).candidates(job)
    grids = [g for g in every if all(g.size(axis) in sizes for axis, sizes in wanted.items())]
    asked = [grids[i : i + GRIDS_AT_ONCE] for i in range(0, len(grids), GRIDS_AT_ONCE)]
    helped = len(grids) >= MANY_GRIDS and is_here(workers)
    answers = done_by(workers if helped else 1, partial(_on_grids, job, over), asked)
    return sorted((candidate for answer in answers for candidate in answer), key=_order)


def _on_grids(job: Job, over: frozenset[str], grids: Sequence[GridSpec]) -> list[Candidate]:
    return [candidate for grid in grids for candidate in on_grid(job, grid, over)]


def without_refused(job: Job, found: Sequence[Candidate], refuse: Refuse) -> list[Candidate]:
    """Return the candidates of a job; those that could run and are refused last, with the reason."""
    judged = []
    for one in found:
        reason = refuse(one.job(job)) if one.feasible else ""
        judged.append(replace(one, hindrance="refused", reason=reason) if reason else one)
    return sorted(judged, key=lambda one: not one.feasible)


def _order(candidate: Candidate) -> tuple[bool, float, tuple[int, ...], int]:
    """Feasible first, then the model's order; ties by grid, larger micro-batches first."""
    return (
        not candidate.feasible,
        candidate.communication_seconds or 0.0,
        candidate.grid.sizes,
        -(candidate.micro_sequences or 0),
    )


def on_grid(job: Job, grid: GridSpec, over: frozenset[str] = frozenset()) -> Iterator[Candidate]:
    """Yield the variants of a job on one grid; or one candidate with the rules that the grid breaks."""
    strategy, placed = strategy_of(job), job.model_copy(update={"grid": grid})
    if problems := check_grid(strategy.opened(placed)):
        yield Candidate(grid, strategy.variant(job), hindrance="divisibility", reason=_said(problems))
        return
    for options in strategy.variants(placed, over):
        variant = options.on(placed)
        least = next(_possible_micro_sequences(variant), None)
        if least is None:
            broken = strategy.check(with_micro_sequences(variant, 1))
            yield Candidate(grid, options, hindrance="divisibility", reason=_said(broken))
            continue
        fitting = fitting_micro_sequences(variant, MICRO_CHOICES if MICRO in over else 1)
        if not fitting:
            use = memory_use(with_micro_sequences(variant, least))
            yield Candidate(grid, options, least, None, use, None, "memory", lacking(use, least))
        for micro, use in fitting.items():
            settled = with_micro_sequences(variant, micro)
            if broken := check_grid(settled):
                yield Candidate(grid, options, micro, settled.micro_steps, use, None, "size", _said(broken))
            else:
                key = strategy.rank_key_seconds(settled) if strategy.ordered_by else None
                yield Candidate(grid, options, micro, settled.micro_steps, use, key)


def fitting_micro_sequences(job: Job, most: int) -> dict[int, MemoryUse]:
    """Return the largest micro-batches that fit, largest first, each with its memory.

    Under a pipeline the smallest: the more there are the less of it stands empty. Where the job gives its
    micro-batch there is no other.
    """
    found: dict[int, MemoryUse] = {}
    broken: dict[int, MemoryUse] = {}
    """Those that fit and that a rule forbids: said, if all are."""
    few_are_slow = job.concrete_grid.depth > 1
    for micro in _possible_micro_sequences(job, largest_first=not few_are_slow):
        use = memory_use(with_micro_sequences(job, micro))
        if use.fits:
            (broken if check_grid(with_micro_sequences(job, micro)) else found)[micro] = use
        elif few_are_slow:
            break
        if len(found) == most:
            break
    return found or dict(list(broken.items())[:most])


def _possible_micro_sequences(job: Job, *, largest_first: bool = False) -> Iterator[int]:
    """Yield the micro-batches that divide the batch; a pipeline's schedule may have rules for their number."""
    given = job.batch.micro_sequences
    choices = divisors(job.batch.sequences // job.concrete_grid.replicas) if given == "auto" else [given]
    if largest_first:
        choices.reverse()
    free, strategy = not job.concrete_grid.depth_axes, strategy_of(job)
    yield from (c for c in choices if free or not strategy.check(with_micro_sequences(job, c)))


def lacking(use: MemoryUse, sequences: int) -> str:
    """Say by how much memory does not suffice for so many sequences at a time, and what needs most."""
    many = "one sequence" if sequences == 1 else f"{sequences} sequences"
    if (tier := use.full) is not None and use.fits_device:
        return f"with {many} at a time it {tier_advice(tier, use.tiers[tier])}"
    over = format_memory(use.per_rank_bytes - use.capacity_bytes, commas=True)
    largest = format_memory(use.by_category[use.largest_category], commas=True)
    there = format_memory(use.capacity_bytes, commas=True)
    return (
        f"needs {over} more memory than the {there} there are, with {many} "
        f"at a time; most of it, {largest}, for {use.largest_category}"
    )


def _said(problems: list[Problem]) -> str:
    return "; ".join(str(problem) for problem in problems)
