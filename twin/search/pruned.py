"""Candidates in the order of their floors: those are simulated that may be the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from twin.description.job import Job
from twin.engine.crew import Workers, as_asked
from twin.search.candidates import Candidate
from twin.search.entries import Figures, Progress, RankedCandidate, figures_of, with_figures
from twin.search.floors import closer_floor


class Pruned:
    """Candidates that are simulated while their floors are below the fastest step so far."""

    def __init__(self, entries: list[RankedCandidate], least: list[float]) -> None:
        self.found = entries
        self._least = least
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
        least, order = self._least, self._order
        best = min(map(self._step, order), default=float("inf"))

        def hopeful() -> Iterator[tuple[int, tuple[Candidate, float]]]:
            for number in order:
                if least[number] >= best:
                    return
                entry = self.found[number]
                if entry.figures is None and not entry.failure and self._closer[number] < best:
                    yield number, (entry.candidate, best)

        answers = as_asked(workers, partial(judged, base), hopeful())
        for done, (index, (floor, figures)) in enumerate(answers, 1):
            self._closer[index] = floor
            if figures is not None:
                self.found[index] = with_figures(self.found[index], figures)
                best = min(best, self._step(index))
            progress(done, done + sum(least[i] < best for i in order[done:]))

    def settled(self) -> list[RankedCandidate]:
        """Return all; what was simulated in vain, of which there is more with more workers, is left out."""
        fastest = self.fastest
        if fastest is None:
            return self.found
        best, found = self._step(fastest), []
        for number, entry in enumerate(self.found):
            least = self._least[number]
            floor = least if least >= best else max(least, self._closer[number])
            hopeless = floor >= best and self._step(number) != best
            found.append(replace(entry, figures=None, failure="", floor_seconds=floor) if hopeless else entry)
        return found


def judged(base: Job, asked: tuple[Candidate, float]) -> tuple[float, Figures | str | None]:
    """Work out a closer floor of a candidate, and simulate it if that is below the fastest so far."""
    candidate, best = asked
    floor = closer_floor(candidate.job(base))
    return floor, None if floor >= best else figures_of(base, [candidate])[0]
