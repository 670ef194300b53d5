"""Candidates in the order of their floors: those are simulated that may be the fastest.

Of those that differ in recomputation alone the one with least is never slower than the others: its step is their floor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from twin.description.job import Job
from twin.engine.crew import Workers, as_asked
from twin.search.candidates import Candidate
from twin.search.entries import Figures, Progress, RankedCandidate, figures_of, with_figures
from twin.search.floors import closer_floor


class Pruned:
    """Candidates that are simulated while their floors are below the fastest step so far."""

    def __init__(self, entries: list[RankedCandidate], least: list[float], lighter: list[int | None]) -> None:
        self.found = entries
        self._least = least
        self._lighter = lighter
        self._closer = [0.0] * len(entries)
        """Closer floors of those of which they have been worked out."""
        self._order = sorted(range(len(entries)), key=least.__getitem__)

    @property
    def fastest(self) -> int | None:
        """Number of the candidate with the shortest step so far."""
        done = [i for i, entry in enumerate(self.found) if entry.figures is not None]
        return min(done, key=lambda i: (self._step(i), self.found[i].model_rank), default=None)

    def _step(self, number: int) -> float:
        figures = self.found[number].figures
        return float("inf") if figures is None else figures.step_seconds

    def simulate(self, base: Job, workers: Workers, progress: Progress) -> None:
        """Simulate all whose floors are below the fastest, and a few that are found not to be meanwhile."""
        failed = None
        while failed != (failed := sum(bool(entry.failure) for entry in self.found)):
            self._simulate_hopeful(base, workers, progress)  # once more for those whose floor has failed

    def _simulate_hopeful(self, base: Job, workers: Workers, progress: Progress) -> None:
        least, order = self._least, self._order
        best = min(map(self._step, order), default=float("inf"))

        def hopeful() -> Iterator[tuple[int, tuple[Candidate, float]]]:
            for number in order:
                if least[number] >= best:
                    return
                entry = self.found[number]
                if self._covered(number) or entry.figures is not None or entry.failure:
                    continue
                if self._closer[number] < best:
                    yield number, (entry.candidate, best)

        floors_ahead = [least[number] for number in order if not self._covered(number)]
        answers = as_asked(workers, partial(judged, base), hopeful())
        for done, (index, (floor, figures)) in enumerate(answers, 1):
            self._closer[index] = floor
            if figures is not None:
                self.found[index] = with_figures(self.found[index], figures)
                best = min(best, self._step(index))
            progress(done, max(done, bisect_left(floors_ahead, best)))

    def _covered(self, number: int) -> bool:
        """Tell whether the step of another is this one's floor."""
        lighter = self._lighter[number]
        return lighter is not None and not self.found[lighter].failure

    @property
    def thriftier(self) -> list[int]:
        """Numbers of those that are as the fastest but for more recomputation."""
        fastest = self.fastest
        return [] if fastest is None else [number for number, other in enumerate(self._lighter) if other == fastest]

    def settled(self) -> list[RankedCandidate]:
        """Return all; what was simulated in vain, of which there is more with more workers, is left out."""
        fastest = self.fastest
        if fastest is None:
            return self.found
        best, found = self._step(fastest), []
        for number, entry in enumerate(self.found):
            floor = self._floor(number, best)
            hopeless = floor >= best and self._step(number) != best
            found.append(replace(entry, figures=None, failure="", floor_seconds=floor) if hopeless else entry)
        return found

    def _floor(self, number: int, best: float) -> float:
        """Return what a candidate cannot be faster than, as far as it was wanted."""
        lighter = self._lighter[number]
        if lighter is not None and self._covered(number):
            return max(self._floor(lighter, best), self._step(lighter) if self.found[lighter].figures else 0.0)
        least = self._least[number]
        return least if least >= best else max(least, self._closer[number])


def lightest(entries: Sequence[RankedCandidate]) -> list[int | None]:
    """Return for each candidate the number of the one that computes less again, if it fits, and is alike otherwise."""
    keys, least = [], dict[Hashable, tuple[int, int]]()
    for number, entry in enumerate(entries):
        found = entry.candidate
        options, again = found.options.but_recomputation()
        key = (found.grid, found.micro_sequences, options)
        keys.append(key)
        least[key] = min(least.get(key, (again, number)), (again, number))
    return [None if (lighter := least[key][1]) == number else lighter for number, key in enumerate(keys)]


def judged(base: Job, asked: tuple[Candidate, float]) -> tuple[float, Figures | str | None]:
    """Work out a closer floor of a candidate, and simulate it if that is below the fastest so far."""
    candidate, best = asked
    floor = closer_floor(candidate.job(base))
    return floor, None if floor >= best else figures_of(base, [candidate])[0]
