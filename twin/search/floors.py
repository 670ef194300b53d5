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
from twin.engine.parallel import in_parallel
from twin.engine.simulate import Simulation, simulate
from twin.search.candidates import Candidate
from twin.strategies import strategy_of

MANY_GROUPS = 64
"""Rehearsals that are worth starting processes for."""


def floors(base: Job, found: Sequence[Candidate], workers: int = 1) -> list[float]:
    """Return a floor of each candidate, seconds; 0 where nothing is known."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, candidate in enumerate(found):
        job = candidate.job(base)
        groups.setdefault((job.strategy, *strategy_of(job).same_rehearsal(job)), []).append(number)
    asked = [tuple(found[i] for i in numbers) for numbers in groups.values()]
    of_groups = in_parallel(partial(_of_group, base), asked, workers if len(asked) >= MANY_GROUPS else 1)
    least = [0.0] * len(found)
    for numbers, answers in zip(groups.values(), of_groups, strict=True):
        for number, seconds in zip(numbers, answers, strict=True):
            least[number] = seconds
    return least


def _of_group(base: Job, group: Sequence[Candidate]) -> list[float]:
    """Return the floors of candidates that have the same rehearsal."""
    jobs = [candidate.job(base) for candidate in group]
    strategy = strategy_of(jobs[0])
    small = strategy.rehearsal(jobs[0])
    if small is None:
        return [0.0] * len(jobs)
    pieces = Pieces(simulate(small, engine="folded"))
    return [strategy.floor_seconds(job, pieces) for job in jobs]


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
