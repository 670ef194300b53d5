"""Times that candidates cannot be below: what is slower than the best need not be simulated.

They come from small jobs of the same pieces. A floor is no estimate: it must hold for every candidate, or the search
would lose its best.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase, translate
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twin.description.job import Job
from twin.engine.crew import Workers, done_by, is_here
from twin.engine.layout import Layout, groups_of
from twin.engine.priced import Priced
from twin.engine.pricing import price
from twin.engine.program import COMPUTE, START
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.search.candidates import Candidate
from twin.strategies import strategy_of

MANY_GROUPS = 64
"""Rehearsals that are worth starting processes for."""


def floors(base: Job, found: Sequence[Candidate], workers: Workers = 1) -> list[float]:
    """Return a floor of each candidate, seconds; 0 where nothing is known."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, candidate in enumerate(found):
        job = candidate.job(base)
        groups.setdefault((job.strategy, *strategy_of(job).same_rehearsal(job)), []).append(number)
    asked = [tuple(found[i] for i in numbers) for numbers in groups.values()]
    helped = len(asked) >= MANY_GROUPS and is_here(workers)
    of_groups = done_by(workers if helped else 1, partial(_of_group, base), asked)
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
    pieces = Pieces(simulate(uncapped(small), engine="folded"))
    return [strategy.floor_seconds(job, pieces) for job in jobs]


def closer_floor(job: Job) -> float:
    """Return another floor of a job, which takes longer to work out than one of many candidates may.

    A communicator's collectives run one after the other, and none is quicker than alone.
    """
    strategy = strategy_of(job)

    @cache
    def pieces() -> Pieces | None:
        small = strategy.rehearsal(job)
        return None if small is None else Pieces(simulate(uncapped(small), engine="folded"))

    def seconds(text: str) -> float:
        found = pieces()
        return 0.0 if found is None else found(text)

    return max(strategy.closer_floor_seconds(job, seconds, partial(hop_seconds, job)), _moving_seconds(job))


def uncapped(job: Job) -> Job:
    """Leave a power cap out: a rehearsal's kernels draw otherwise than the job's, and its clock may be lower."""
    return job if job.power_cap_watts is None else job.model_copy(update={"power_cap_watts": None})


def hop_seconds(job: Job) -> float:
    """Return how long a message between passes takes at least: alone, where it takes least."""
    strategy = strategy_of(job)
    names, size = strategy.messages(job)
    if not names:
        return 0.0
    pairs = {each.name: each for each in strategy.communicators(job) if each.name in names}
    layout, machine = Layout.of(job), job.machine
    groups = {each.partition: groups_of(each.members, each.partition, layout) for each in pairs.values()}
    library = machine.libraries[job.library or machine.library]
    prices = price(machine, library, [(name, "send", size) for name in pairs], pairs, groups, layout)
    return min(cost.startup_seconds + cost.transfer_seconds for costs in prices.costs for cost in costs)


def _moving_seconds(job: Job) -> float:
    """Return how long a job's traffic keeps one of its groups busy, if it moves as fast as alone."""
    traffic = strategy_of(job).traffic(job)
    if traffic is None:
        return 0.0
    small, pattern, times = traffic
    priced = Priced.of(small)
    busy: dict[str, NDArray[np.float64]] = {}
    (program,) = priced.programs
    for code, target, (op, values) in zip(program.code, program.target, program.ops, strict=True):
        if code == START and fnmatchcase(op.name.format_map(values), pattern):
            communicator = program.calls[target][0]
            alone = np.array([cost.startup_seconds + cost.transfer_seconds for cost in priced.prices.costs[target]])
            busy[communicator] = busy.get(communicator, 0.0) + alone
    # a group has one placement, and all of a communicator's make the same calls
    return times * max((float(seconds.max()) for seconds in busy.values()), default=0.0)


class Pieces:
    """How long the pieces of a step took; see `Strategy.floor_seconds`."""

    def __init__(self, simulation: Simulation) -> None:
        ops = [
            _Piece(op.name.format_map(values), start, end, code == COMPUTE)
            for part in simulation.parts
            for code, (op, values), start, end in zip(
                part.program.code,
                part.program.ops,
                part.timeline.start[0].tolist(),
                part.timeline.end[0].tolist(),
                strict=True,
            )
        ]
        # the first micro-step writes sums of gradients, later ones add to them: what is shorter holds for both
        self._micro_steps = [
            [op for op in ops if op.name.startswith(f"micro{micro}/")] for micro in range(simulation.job.micro_steps)
        ]
        self._known: dict[str, float] = {}

    def __call__(self, text: str) -> float:
        """Return the seconds of the pieces with a text in their names, of the micro-step where they are fewest.

        From the first begin to the last end; after `=` those in which the device computes. After `+` those of the
        micro-step where they are most: they are taken away.
        """
        if text not in self._known:
            part = text.lstrip("+=")
            matches = partial(_contains, part) if "*" not in part else re.compile(translate(f"*{part}*")).match
            found = [[op for op in ops if matches(op.name)] for ops in self._micro_steps]
            if text.startswith("+"):
                self._known[text] = max(sum(op.seconds for op in ops) for ops in found)
            elif text.startswith("="):
                self._known[text] = min(sum(op.seconds for op in ops if op.computes) for ops in found)
            else:
                self._known[text] = min(_span(ops) for ops in found)
        return self._known[text]


class _Piece(NamedTuple):
    name: str
    start: float
    end: float
    computes: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


def _span(ops: Sequence[_Piece]) -> float:
    begin = min((op.start for op in ops), default=0.0)
    return max((op.end for op in ops), default=0.0) - begin


def _contains(part: str, name: str) -> bool:
    return part in name
