"""Choose a grid and a micro-batch the way the authors of the 4D algorithm did, or a strategy.

All factorizations of the ranks that satisfy the job's rules and fit into memory are ranked by
the published communication model, those of `megatron` on GPUs by floors of their steps
(`twin.search.floors`); the ten best are simulated, each with the largest
micro-batch that fits; the fastest is taken. Under `strategy: auto` every strategy is searched, with
its options (`twin.search.across`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from twin.cost.memory import advice, largest_micro_sequences, memory_use, with_micro_sequences
from twin.description.grid import GridSpec
from twin.description.job import AUTO, Job
from twin.description.problems import DescriptionError, Problem, fail
from twin.engine.crew import Workers
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.engine.simulation import Simulation
from twin.search.candidates import Refuse, on_grid
from twin.search.candidates import candidates as all_candidates
from twin.search.floors import floors
from twin.strategies import check_grid, names, strategy_of

CANDIDATES = 10
"""So many of the published model's order are simulated for `auto`, as many as its paper looks at."""
LONG = 3
"""Candidates with more micro-steps than this are compared by rehearsals before any is simulated."""
CLOSE = 1.001
"""Of these, all are simulated that the fastest rehearsal leaves behind by no more than this."""


class AllRefusedError(DescriptionError):
    """Grids of a job could run, and each of them is refused by whoever asks."""


@dataclass(frozen=True)
class Choice:
    """The simulated candidates, fastest first."""

    simulations: tuple[Simulation, ...]
    feasible: int
    """Grids that satisfy the rules and fit into memory; under `strategy: auto` of all strategies, with options."""
    among_strategies: bool = False
    """The simulations are the best of each strategy, of a job that says `strategy: auto`."""
    cannot_run: Mapping[str, str] = field(default_factory=dict)
    """Of such a job: why strategies have no candidate."""

    @property
    def best(self) -> Simulation:
        """The fastest one."""
        return self.simulations[0]


def with_grid(job: Job, grid: GridSpec) -> Job | None:
    """Return the job on a grid with a micro-batch that fits, or None."""
    return next((c.job(job) for c in on_grid(job, grid) if c.feasible), None)


def candidates(job: Job) -> list[Job]:
    """Every feasible grid of a job, best first by the published model, or by floors of its steps if there are any."""
    found = [candidate for candidate in all_candidates(job) if candidate.feasible]
    if len(found) > CANDIDATES and not strategy_of(job).ordered_by:
        by_floor = sorted(zip(floors(job, found), found, strict=True), key=lambda pair: pair[0])
        found = [candidate for _, candidate in by_floor]
    return [candidate.job(job) for candidate in found]


def choose(
    job: Job,
    *,
    most: int = CANDIDATES,
    workers: Workers = 1,
    refuse: Refuse | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Choice:
    """Resolve `auto` by simulating the best candidates; under `strategy: auto` those of every strategy (on `workers`).

    What `refuse` gives a reason against is left out. Raises DescriptionError if nothing fits.
    """
    if job.strategy == AUTO:
        return _among_strategies(job, workers, refuse, progress)
    if job.grid != "auto":
        return Choice((simulate(_with_micro(job)),), 1)
    ranked = candidates(job)
    if not ranked:
        raise fail(
            "grid",
            f"auto: no grid of {job.ranks} ranks keeps the rules and fits into the memory of "
            f"{job.machine.device.name}; {_why(job)}",
        )
    first, refused = _first(ranked, most, refuse)
    if not first:
        said = f"auto: all {len(ranked)} grids of {job.ranks} ranks that could run are refused: {refused}"
        raise AllRefusedError([Problem("grid", said)])
    simulations = []
    entered = _worth_simulating(first)
    for number, candidate in enumerate(entered):
        progress(number, len(entered))
        simulations.append(simulate(candidate, max_classes=MANY_CLASSES))
    simulations.sort(key=lambda s: s.step_seconds)
    # Leaving contention out makes a candidate look faster, if anything: do the best ones properly.
    while simulations[0].global_links_left_out:
        try:
            simulations[0] = simulate(simulations[0].job)
        except DescriptionError:  # too many classes; the result says what was left out
            break
        simulations.sort(key=lambda s: s.step_seconds)
    return Choice(tuple(simulations), len(ranked))


def _first(ranked: list[Job], most: int, refuse: Refuse | None) -> tuple[list[Job], str]:
    """Return the first candidates that are not refused, so many at most, and why the first of those is that is."""
    if refuse is None:
        return ranked[:most], ""
    found: list[Job] = []
    said = ""
    for candidate in ranked:
        if reason := refuse(candidate):
            said = said or reason
            continue
        found.append(candidate)
        if len(found) == most:
            break
    return found, said


def _among_strategies(
    job: Job, workers: Workers, refuse: Refuse | None, progress: Callable[[int, int], None]
) -> Choice:
    from twin.search.across import search_across  # noqa: PLC0415  its tables load PyArrow

    raw = job.model_dump(mode="json", by_alias=True, exclude_unset=True)  # strategies have defaults of their own
    found = search_across(raw, names(), refuse=refuse, workers=workers, progress=progress)
    best = tuple(one.best for one in found.searches.values())
    return Choice(best, sum(one.feasible for one in found.searches.values()), True, found.reasons)


def _worth_simulating(candidates: list[Job]) -> list[Job]:
    """Leave out, of candidates that are long to simulate, those that a rehearsal finds slower.

    Under a pipeline there is none: micro-steps that fill it are not like others. Nor under a power cap, as the clock
    depends on how much of the step is which kernel.
    """
    if candidates and candidates[0].power_cap_watts is not None:
        return candidates
    long = [job for job in candidates if job.micro_steps > LONG and job.concrete_grid.depth == 1]
    if len(long) < 2:
        return candidates
    seconds = {id(job): rehearsed_seconds(job) for job in long}
    fastest = min(seconds.values())
    return [job for job in candidates if seconds.get(id(job), 0.0) <= CLOSE * fastest]


def rehearsed_seconds(job: Job) -> float:
    """Work out the step of a job with many micro-steps from steps with one and with two.

    Micro-steps are alike: what a second one adds to one, every further one adds.
    """
    one, two = (simulate(_shortened(job, steps), max_classes=MANY_CLASSES).step_seconds for steps in (1, 2))
    return one + (job.micro_steps - 1) * (two - one)


def _shortened(job: Job, micro_steps: int) -> Job:
    sequences = job.concrete_grid.replicas * job.concrete_micro_sequences * micro_steps
    return job.model_copy(update={"batch": job.batch.model_copy(update={"sequences": sequences})})


def _with_micro(job: Job) -> Job:
    if job.batch.micro_sequences != "auto":
        return job
    micro = largest_micro_sequences(job)
    if micro is None:
        smallest = with_micro_sequences(job, 1)
        if memory_use(smallest).fits:  # then a rule is in the way: that of the whole part of a rank is said
            whole = with_micro_sequences(job, job.batch.sequences // job.concrete_grid.replicas)
            raise DescriptionError(strategy_of(whole).check(whole) or strategy_of(smallest).check(smallest))
        raise fail(
            "batch.micro_sequences", f"auto: not even one sequence fits; {advice(smallest, memory_use(smallest))}"
        )
    resolved = with_micro_sequences(job, micro)
    if problems := check_grid(resolved):
        raise DescriptionError(problems)
    return resolved


def _why(job: Job) -> str:
    """Explain the grid that comes nearest to fitting, or the one that breaks the fewest rules."""
    best: tuple[float, str] | None = None
    broken: tuple[int, str] | None = None
    for grid in strategy_of(job).candidates(job):
        placed = strategy_of(job).opened(job.model_copy(update={"grid": grid}))
        placed = with_micro_sequences(placed, 1) if job.batch.micro_sequences == "auto" else placed
        if problems := check_grid(placed):
            if broken is None or len(problems) < broken[0]:
                broken = len(problems), f"the nearest, {grid}: {'; '.join(map(str, problems))}"
            continue
        use = memory_use(placed)
        over = use.per_rank_bytes - use.capacity_bytes
        if best is None or over < best[0]:
            best = over, f"the nearest, {grid}, {advice(placed, use)}"
    found = best or broken
    return found[1] if found else "there is no grid of them at all"
