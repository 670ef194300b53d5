"""Times that candidates cannot be below: what is slower than the best need not be simulated.

They come from small jobs of the same pieces. A floor is no estimate: it must hold for every candidate, or the search
would lose its best.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from twin.description.job import Job
from twin.engine.simulate import Simulation, simulate
from twin.search.candidates import Candidate
from twin.strategies import strategy_of


def floors(base: Job, found: Sequence[Candidate]) -> list[float]:
    """Return a floor of each candidate, seconds; 0 where nothing is known."""
    known: dict[tuple[Any, ...], Pieces | None] = {}
    return [_floor(candidate.job(base), known) for candidate in found]


def _floor(job: Job, known: dict[tuple[Any, ...], Pieces | None]) -> float:
    strategy = strategy_of(job)
    key = (job.strategy, *strategy.same_rehearsal(job))
    if key not in known:
        small = strategy.rehearsal(job)
        known[key] = None if small is None else Pieces(simulate(small, engine="folded"))
    pieces = known[key]
    return 0.0 if pieces is None else strategy.floor_seconds(job, pieces)


class Pieces:
    """How long the pieces of a step took; see `Strategy.floor_seconds`."""

    def __init__(self, simulation: Simulation) -> None:
        ops = [
            (part.program.name(i), float(part.timeline.start[0, i]), float(part.timeline.end[0, i]))
            for part in simulation.parts
            for i in range(len(part.program))
        ]
        # the first micro-step writes sums of gradients, later ones add to them: what is shorter holds for both
        self._micro_steps = [
            [op for op in ops if op[0].startswith(f"micro{micro}/")] for micro in range(simulation.job.micro_steps)
        ]
        self._known: dict[str, float] = {}

    def __call__(self, text: str) -> float:
        """Return the seconds of the pieces with a text in their names, of the micro-step where they are fewest.

        After `+` those where they are most: they are taken away.
        """
        if text not in self._known:
            taken_away, pattern = text.startswith("+"), f"*{text.removeprefix('+')}*"
            seconds = []
            for ops in self._micro_steps:
                spans = [(start, end) for name, start, end in ops if fnmatchcase(name, pattern)]
                if taken_away:
                    seconds.append(sum(end - start for start, end in spans))
                else:
                    begin = min((start for start, _ in spans), default=0.0)
                    seconds.append(max((end for _, end in spans), default=0.0) - begin)
            self._known[text] = max(seconds) if taken_away else min(seconds)
        return self._known[text]
