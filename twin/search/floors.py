"""Times that candidates cannot be below: what is slower than the best need not be simulated.

They come from small jobs of the same pieces.

A floor is no estimate: it must hold for every candidate, or the search would lose its best.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

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
    """How long the pieces of a step took, of its last micro-step; see `Strategy.floor_seconds`."""

    def __init__(self, simulation: Simulation) -> None:
        (part,) = simulation.parts
        last = f"micro{simulation.job.micro_steps - 1}/"
        names = [part.program.name(i) for i in range(len(part.program))]
        self._ops = [(name, i) for i, name in enumerate(names) if name.startswith(last)]
        self._start, self._end = part.timeline.start[0], part.timeline.end[0]
        self._known: dict[str, float] = {}

    def __call__(self, text: str) -> float:
        """Return the seconds of the pieces with a text in their names."""
        if text not in self._known:
            pattern = f"*{text.removeprefix('+')}*"
            ops = np.array([i for name, i in self._ops if fnmatchcase(name, pattern)], dtype=np.int64)
            start, end = self._start[ops], self._end[ops]
            if not len(ops):
                self._known[text] = 0.0
            elif text.startswith("+"):
                self._known[text] = float((end - start).sum())
            else:
                self._known[text] = float(end.max() - start.min())
        return self._known[text]
