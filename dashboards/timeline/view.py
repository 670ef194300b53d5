"""What a visitor wants to see of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.timeline.step import Step, partners
from twin.description.grid import Axes
from twin.description.problems import fail


@dataclass(frozen=True)
class View:
    """The choices of an address."""

    ranks: tuple[int, ...] = ()
    """Empty: as many as there is room for."""
    show: str = ""
    """One category, or empty for all."""
    colour: str = "kind"
    """kind, or error: how much longer than predicted."""
    align: str = ""
    """Name of an op at which both runs are laid over each other; empty: at the step's begin."""
    pins: tuple[int, ...] = ()
    """Ranks that stand above all others, whichever are chosen."""
    turned: tuple[int, ...] = ()
    """Ranks laid out the other way: one lane where others have one each stream, and the other way round."""
    lay: str = ""
    """A lane for each `rank`, `host` or place along an axis; empty: for each stream, if there is room."""


@dataclass(frozen=True)
class Pair:
    """One step each of one or two runs, with their ops paired."""

    labels: tuple[str, ...]
    steps: tuple[Step, ...]
    partner: tuple[NDArray[np.int32], ...]
    """For each run, the place of each event's partner in the other; empty arrays for a single run."""
    shift: tuple[float, ...]
    """Seconds added to each run's times."""
    stands_for: tuple[Mapping[int, int], ...]
    """For each run, which rank with events stands for a rank, where it is folded."""
    grid: Axes | None = None
    """Of the first run's job; None if it names none."""
    ranks_per_host: int = 0
    """0 if the job does not say."""

    def rows_of(self, side: int, rank: int) -> slice:
        """Where the events of a rank lie in a run, or of the one that stands for it."""
        return self.steps[side].rows_of(self.stands_for[side].get(rank, rank))


def paired(
    labels: tuple[str, ...],
    steps: tuple[Step, ...],
    align: str = "",
    stands_for: tuple[Mapping[int, int], ...] = (),
    grid: Axes | None = None,
    ranks_per_host: int = 0,
) -> Pair:
    """Pair the ops of two steps. `stands_for[i]` maps ranks to those that stand for them in run i."""
    if len(steps) == 1:
        none = np.full(len(steps[0].rank), -1, dtype=np.int32)
        return Pair(labels, steps, (none,), (0.0,), stands_for or ({},), grid, ranks_per_host)
    maps = [dict(m) for m in stands_for] or [{}, {}]
    found = (partners(steps[0], steps[1], maps[1]), partners(steps[1], steps[0], maps[0]))
    shift = 0.0
    if align:
        starts = [_first_start(step, align) for step in steps]
        shift = starts[0] - starts[1]
    return Pair(labels, steps, found, (0.0, shift), tuple(maps), grid, ranks_per_host)


def _first_start(step: Step, name: str) -> float:
    if name not in step.names:
        raise fail("align", "is not an op of both runs", name[:120])
    return float(step.start[step.base == step.names.index(name)].min())


def all_ranks(pair: Pair) -> list[int]:
    """Ranks that any of the runs has events of."""
    return sorted({rank for step in pair.steps for rank in step.ranks})


def parse_ranks(text: str, known: list[int], key: str = "ranks") -> tuple[int, ...]:
    """Read `0,3,8-15` of a key of an address.

    Raises DescriptionError, naming those that are there, if a rank or a whole range has no events.

    >>> parse_ranks("0,2-4", [0, 1, 2, 3])
    (0, 2, 3)
    """
    wanted: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        low, _, high = part.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal() and len(part) < 20):
            raise fail(key, "expected numbers and ranges such as 0,3,8-15", part[:40])
        found = {rank for rank in known if int(low) <= rank <= int(high or low)}
        if not found:
            raise fail(key, f"no events were written of these; choose among {ranges(known, 12)}", part[:40])
        wanted |= found
    return tuple(sorted(wanted))


def ranges(ranks: Sequence[int], most: int = 4) -> str:
    """Write ranks as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    words = [f"{low}-{high}" if high > low else str(low) for low, high in found]
    return ",".join(words[:most]) + (",…" if len(words) > most else "")
