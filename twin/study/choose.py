"""Choose a grid and a micro-batch the way the authors of the 4D algorithm did.

All factorizations of the ranks that satisfy the job's rules and fit into memory are ranked by
the published communication model; the ten best are simulated, each with the largest
micro-batch that fits; the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twin.cost.memory import advice, largest_micro_sequences, memory_use, with_micro_sequences
from twin.description.grid import Grid, factorizations
from twin.description.job import Job, check_grid
from twin.description.problems import DescriptionError, fail
from twin.engine.simulate import Simulation, simulate
from twin.study.ranking import communication_seconds

CANDIDATES = 10
MOST_CLASSES = 64
"""A candidate that folds into more classes is first tried without contention on global links."""


@dataclass(frozen=True)
class Choice:
    """The simulated candidates, fastest first."""

    simulations: tuple[Simulation, ...]
    feasible: int
    """Grids that satisfy the rules and fit into memory."""

    @property
    def best(self) -> Simulation:
        """The fastest one."""
        return self.simulations[0]


def is_concrete(job: Job) -> bool:
    """Whether grid and micro-batch are given."""
    return job.grid != "auto" and job.batch.micro_sequences != "auto"


def with_grid(job: Job, grid: Grid) -> Job | None:
    """Return the job on a grid with a micro-batch that fits, or None."""
    placed = job.model_copy(update={"grid": grid})
    if check_grid(placed, grid):
        return None
    if job.batch.micro_sequences != "auto":
        return placed if memory_use(placed).fits else None
    micro = largest_micro_sequences(placed)
    if micro is None:
        return None
    resolved = with_micro_sequences(placed, micro)
    return None if check_grid(resolved, grid) else resolved


def candidates(job: Job) -> list[Job]:
    """Every feasible grid of a job, best first by the published model."""
    placed = [found for grid in factorizations(job.ranks) if (found := with_grid(job, grid))]
    return sorted(
        placed, key=lambda j: (communication_seconds(j, j.concrete_grid), j.concrete_grid.sizes)
    )


def choose(job: Job, *, most: int = CANDIDATES,
           progress: Callable[[int, int], None] = lambda _done, _all: None) -> Choice:  # fmt: skip
    """Resolve `auto` by simulating the best candidates.

    Raises DescriptionError if nothing fits.
    """
    if job.grid != "auto":
        return Choice((simulate(_with_micro(job)),), 1)
    ranked = candidates(job)
    if not ranked:
        raise fail("grid", f"auto: no grid of {job.ranks} ranks keeps the rules and fits into the memory of "
                   f"{job.machine.device.name}; {_why(job)}")  # fmt: skip
    simulations = []
    for number, candidate in enumerate(ranked[:most]):
        progress(number, min(most, len(ranked)))
        simulations.append(simulate(candidate, most_classes=MOST_CLASSES))
    simulations.sort(key=lambda s: s.step_seconds)
    # Leaving contention out makes a candidate look faster, if anything: do the best ones properly.
    while simulations[0].global_links_left_out:
        try:
            simulations[0] = simulate(simulations[0].job)
        except DescriptionError:  # too many classes; the result says what was left out
            break
        simulations.sort(key=lambda s: s.step_seconds)
    return Choice(tuple(simulations), len(ranked))


def _with_micro(job: Job) -> Job:
    if job.batch.micro_sequences != "auto":
        return job
    micro = largest_micro_sequences(job)
    if micro is None:
        smallest = with_micro_sequences(job, 1)
        raise fail(
            "batch.micro_sequences",
            f"auto: not even one sequence fits; {advice(smallest, memory_use(smallest))}",
        )
    resolved = with_micro_sequences(job, micro)
    if problems := check_grid(resolved, resolved.concrete_grid):
        raise DescriptionError(problems)
    return resolved


def _why(job: Job) -> str:
    """Explain the grid that comes nearest: all ranks in z, y and x as far as the rules allow."""
    best: tuple[float, str] | None = None
    for grid in factorizations(job.ranks):
        placed = with_micro_sequences(job.model_copy(update={"grid": grid}), 1)
        if check_grid(placed, grid):
            continue
        use = memory_use(placed)
        over = use.per_rank_bytes - use.capacity_bytes
        if best is None or over < best[0]:
            best = over, f"the nearest, {grid}, {advice(placed, use)}"
    return (
        best[1] if best else "no grid divides the model and the batch; try other ranks or sequences"
    )
