"""Times that candidates cannot be below: what is slower than the best need not be simulated.

They come from small jobs of the same pieces. A floor is no estimate: it must hold for every candidate, or the search
would lose its best.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import partial
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
            (op.name.format_map(values), start, end)
            for part in simulation.parts
            for (op, values), start, end in zip(
                part.program.ops, part.timeline.start[0].tolist(), part.timeline.end[0].tolist(), strict=True
            )
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
            taken_away, part = text.startswith("+"), text.removeprefix("+")
            matches = partial(_contains, part) if "*" not in part else re.compile(translate(f"*{part}*")).match
            seconds = []
            for ops in self._micro_steps:
                spans = [(start, end) for name, start, end in ops if matches(name)]
                if taken_away:
                    seconds.append(sum(end - start for start, end in spans))
                else:
                    begin = min((start for start, _ in spans), default=0.0)
                    seconds.append(max((end for _, end in spans), default=0.0) - begin)
            self._known[text] = max(seconds) if taken_away else min(seconds)
        return self._known[text]


def _contains(part: str, name: str) -> bool:
    return part in name
