"""Search a job: rank every candidate by the published communication model, simulate all, sort.

Candidates are simulated in batches, so that one process reuses what neighbours share. What comes
back of each is a row of figures; only the fastest is kept whole, simulated once more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from twin.description.job import Job
from twin.description.problems import DescriptionError, fail
from twin.engine.crew import Workers, done_by, processes
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.engine.simulation import Simulation
from twin.search.candidates import Candidate, Refuse, candidates, unsettled, without_refused
from twin.search.entries import Figures, Progress, RankedCandidate, figures_of, with_figures
from twin.search.floors import floors
from twin.search.pruned import Pruned, lightest
from twin.strategies import strategy_of

By = Literal["simulation", "energy", "axonn"]
"""What is best: the fastest, what draws the fewest joules, or the first by the published communication model."""
TOP = 10
"""So many of the published model's best are followed into the simulated order."""
NO_GRID = "no grid of so many ranks has the sizes that are asked for"
BATCH = 8
"""Candidates that one process takes at once."""


@dataclass(frozen=True, repr=False)
class Search:
    """All candidates of a job: simulated ones first, the best first; then the others."""

    job: Job
    """What was searched, its grid and micro-batch open."""
    by: By
    over: frozenset[str]
    entries: tuple[RankedCandidate, ...]
    best: Simulation
    wall_seconds: float

    def __repr__(self) -> str:
        counts = f"{len(self.entries)} candidates, {self.feasible} feasible, {self.simulated} simulated"
        return f"Search({self.job.name}: {counts})"

    @property
    def feasible(self) -> int:
        """Number of candidates that can run."""
        return sum(entry.candidate.feasible for entry in self.entries)

    @property
    def simulated(self) -> int:
        """Number of candidates that were simulated."""
        return sum(entry.figures is not None for entry in self.entries)

    @property
    def pruned(self) -> int:
        """Number of candidates that cannot be faster than the best, and were not simulated."""
        return sum(entry.floor_seconds is not None for entry in self.entries)

    @property
    def in_order_of_time(self) -> list[RankedCandidate]:
        """Candidates that were simulated, the fastest first; ties in the model's order."""
        done = [entry for entry in self.entries if entry.figures is not None]
        return sorted(done, key=lambda e: (worth(e.figures, "simulation"), e.model_rank or 0))

    @property
    def top_of_model(self) -> list[RankedCandidate]:
        """The published model's best, in its order."""
        ranked = [e for e in self.entries if e.model_rank is not None and e.model_rank <= TOP]
        return sorted(ranked, key=lambda e: e.model_rank or 0)


def search(
    job: Job,
    *,
    over: frozenset[str] = frozenset(),
    by: By = "simulation",
    only: Mapping[str, frozenset[int]] | None = None,
    refuse: Refuse | None = None,
    prune: bool = False,
    most_seconds: float | None = None,
    workers: Workers = 1,
    progress: Progress = lambda _done, _all: None,
) -> Search:
    """Search every grid of a job's ranks, and the options in `over`.

    With `prune` those are not simulated that cannot be the fastest (`twin.search.floors`); nor are those that `refuse`
    names a reason against.
    With `by="energy"` the joules of a step decide, of the nodes and the facility too if the job says what they draw;
    first among those whose step takes `most_seconds` at most, so that a deadline is kept where it can be. With
    `by="axonn"` the published communication model alone decides, and only its first is simulated.
    Raises DescriptionError if nothing can run.
    """
    begin = time.perf_counter()
    ordered = bool(strategy_of(job).ordered_by)
    if by == "axonn" and not ordered:
        raise fail("--by", f"strategy {job.strategy} has no published model to rank by; leave the option out", by)
    base = unsettled(job)
    found = candidates(base, over, only, workers)
    if refuse is not None:
        found = without_refused(base, found, refuse)
    ready = [candidate for candidate in found if candidate.feasible]
    if not ready:
        refused = any(candidate.hindrance == "refused" for candidate in found)  # names its own keys
        raise fail("" if refused else "ranks" if found else "grid", why_nothing(found), job.ranks)
    ranked = [RankedCandidate(candidate, number) for number, candidate in enumerate(ready, 1)]
    if by != "axonn":
        run = without_hopeless if prune and by == "simulation" else simulated
        order = partial(_in_order, by=by, most_seconds=math.inf if most_seconds is None else most_seconds)
        entries, best = _best_done_properly(base, order(run(base, ranked, workers, progress)), order)
    else:
        best = simulate(ready[0].job(base), max_classes=MANY_CLASSES)
        entries = [replace(ranked[0], figures=Figures.of(best)), *ranked[1:]]
    if not ordered:  # by what they were numbered is no model's order
        entries = [replace(entry, model_rank=None) for entry in entries]
    rest = [RankedCandidate(candidate) for candidate in found if not candidate.feasible]
    return Search(base, by, over, (*entries, *rest), best, time.perf_counter() - begin)


def why_nothing(found: Sequence[Candidate]) -> str:
    """Say why no candidate can run: the one that comes nearest."""
    if refused := [c for c in found if c.hindrance == "refused"]:
        alike = len({c.reason for c in refused}) == 1
        return refused[0].reason if alike else f"none is wanted; such as {refused[0].grid}: {refused[0].reason}"
    short = [c for c in found if c.hindrance == "memory" and c.memory is not None]
    if short:
        nearest = min(short, key=lambda c: c.memory.per_rank_bytes if c.memory else 0.0)
        more = "" if nearest.memory and nearest.memory.fits_device else "; use more ranks"
        return f"no grid fits; the nearest, {nearest.grid}: {nearest.reason}{more}"
    if too_long := [c for c in found if c.hindrance == "size"]:
        return f"no grid can be simulated; {too_long[0].grid}: {too_long[0].reason}"
    if found:
        return f"no grid divides the model and the batch; such as {found[0].grid}: {found[0].reason}"
    return NO_GRID


def simulated(
    base: Job, entries: Sequence[RankedCandidate], workers: Workers, progress: Progress, batch: int = BATCH
) -> list[RankedCandidate]:
    """Simulate all of these, longest first, so that no process is left with a long one alone."""
    order = sorted(range(len(entries)), key=lambda i: -(entries[i].candidate.micro_steps or 0))
    batches = [order[i : i + batch] for i in range(0, len(order), batch)]
    work = partial(figures_of, base)
    asked = [tuple(entries[i].candidate for i in batch) for batch in batches]
    answers = done_by(workers, work, asked, lambda done, _all: progress(min(done * batch, len(order)), len(order)))
    found = list(entries)
    for numbers, answer in zip(batches, answers, strict=True):
        for index, figures in zip(numbers, answer, strict=True):
            found[index] = with_figures(found[index], figures)
    return found


def without_hopeless(
    base: Job, entries: Sequence[RankedCandidate], workers: Workers, progress: Progress
) -> list[RankedCandidate]:
    """Simulate them by their floors, lowest first, until no floor that is left is below the fastest.

    The fastest is what counts in the end: where contention on global links was left out of it, that is made up for,
    and those are simulated too that it then is no faster than; and last what takes less memory than it, as it computes
    more again.
    """
    lighter = lightest(entries)
    first = [number for number, other in enumerate(lighter) if other is None]
    with processes(workers) as crew:
        least = [0.0] * len(entries)
        for number, floor in zip(first, floors(base, [entries[i].candidate for i in first], crew), strict=True):
            least[number] = floor
        pruned = Pruned(list(entries), least, lighter)
        while True:
            pruned.simulate(base, crew, progress)
            fastest = pruned.fastest
            if fastest is None or not _done_properly(base, pruned.found, fastest):
                break
        found, thriftier = pruned.settled(), pruned.thriftier
        done = simulated(base, [pruned.found[i] for i in thriftier], crew, lambda _done, _all: None)
        for number, entry in zip(thriftier, done, strict=True):
            found[number] = entry
        return found


def _done_properly(base: Job, found: list[RankedCandidate], number: int) -> bool:
    """Simulate a candidate with contention on global links, if that was left out; tell if that was done."""
    before = found[number].figures
    if before is None or before.global_link_contention:
        return False
    try:
        found[number] = replace(found[number], figures=Figures.of(simulate(found[number].candidate.job(base))))
    except DescriptionError:  # too many classes; the result says what was left out
        return False
    return True


def worth(figures: Figures | None, by: By) -> float:
    """Return what is to be least: joules of a step, or its seconds."""
    if figures is None:
        return 0.0
    return figures.billed_joules if by == "energy" else figures.step_seconds


def _in_order(entries: Sequence[RankedCandidate], by: By, most_seconds: float) -> list[RankedCandidate]:
    """Sort by simulated time or energy, ties in the model's order, and number them; what takes longer comes last."""
    done = [e for e in entries if e.figures is not None]
    done.sort(key=lambda e: (worth(e.figures, "simulation") > most_seconds, worth(e.figures, by), e.model_rank))
    numbered = [replace(entry, rank=number) for number, entry in enumerate(done, 1)]
    return numbered + [e for e in entries if e.figures is None]


def _best_done_properly(
    base: Job, entries: list[RankedCandidate], order: Callable[[Sequence[RankedCandidate]], list[RankedCandidate]]
) -> tuple[list[RankedCandidate], Simulation]:
    """Simulate the best once more, with contention on global links, until it stays the best.

    Leaving contention out makes a candidate look faster and thriftier, if anything.
    """
    if entries[0].figures is None:
        raise fail("ranks", f"no candidate could be simulated; the first: {entries[0].failure}")
    while not entries[0].figures.global_link_contention:
        try:
            whole = simulate(entries[0].candidate.job(base))
        except DescriptionError:  # too many classes; the result says what was left out
            break
        entries = order([replace(entries[0], figures=Figures.of(whole)), *entries[1:]])
        assert entries[0].figures is not None
    return entries, simulate(entries[0].candidate.job(base), max_classes=_classes(entries[0]))


def _classes(entry: RankedCandidate) -> int | None:
    """The limit on classes with which an entry's figures came about."""
    assert entry.figures is not None
    return None if entry.figures.global_link_contention else MANY_CLASSES


def options_varied(search: Search) -> list[str]:
    """Names of the options that differ between candidates; some have no word for what is usual."""
    seen = [entry.candidate.options.words() for entry in search.entries]
    names = dict.fromkeys(name for words in seen for name in words)
    return [name for name in names if len({words.get(name) for words in seen}) > 1]
