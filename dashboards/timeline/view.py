"""What a visitor wants to see of two runs, and the lanes that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.events import CATEGORIES, Floats
from dashboards.timeline.step import Step, partners
from twin.description.problems import fail

MAX_LANES = 256
"""More lanes than this are thinner than a few pixels each on a screen."""
MAX_STREAM_LANES = 96
"""With more, one lane stands for all streams of a rank."""
MAX_WORST = 50
"""Rows that somebody steps through with the button."""


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

    def rows_of(self, side: int, rank: int) -> slice:
        """Where the events of a rank lie in a run, or of the one that stands for it."""
        return self.steps[side].rows_of(self.stands_for[side].get(rank, rank))


@dataclass(frozen=True)
class Lanes:
    """Events to be drawn: which run, which event, on which lane."""

    names: tuple[str, ...]
    side: NDArray[np.int8]
    event: NDArray[np.int32]
    lane: NDArray[np.int16]
    start: Floats
    end: Floats
    category: NDArray[np.int8]
    change: NDArray[np.float32]
    """log2 of the other run's time over this one's predicted: NaN where there is no partner."""
    by_rank: bool
    left_out: int
    """Ranks that there was no room for."""


def paired(
    labels: tuple[str, ...], steps: tuple[Step, ...], align: str = "", stands_for: tuple[Mapping[int, int], ...] = ()
) -> Pair:
    """Pair the ops of two steps. `stands_for[i]` maps ranks to those that stand for them in run i."""
    if len(steps) == 1:
        none = np.full(len(steps[0].rank), -1, dtype=np.int32)
        return Pair(labels, steps, (none,), (0.0,), stands_for or ({},))
    maps = [dict(m) for m in stands_for] or [{}, {}]
    found = (partners(steps[0], steps[1], maps[1]), partners(steps[1], steps[0], maps[0]))
    shift = 0.0
    if align:
        starts = [_first_start(step, align) for step in steps]
        shift = starts[0] - starts[1]
    return Pair(labels, steps, found, (0.0, shift), tuple(maps))


def _first_start(step: Step, name: str) -> float:
    if name not in step.names:
        raise fail("align", "is not an op of both runs", name[:120])
    return float(step.start[step.base == step.names.index(name)].min())


def all_ranks(pair: Pair) -> list[int]:
    """Ranks that any of the runs has events of."""
    return sorted({int(r) for step in pair.steps for r in np.unique(step.rank)})


def parse_ranks(text: str, known: list[int]) -> tuple[int, ...]:
    """Read `0,3,8-15`; ranks that are not there are left out. Raises DescriptionError.

    >>> parse_ranks("0,2-4", [0, 1, 2, 3])
    (0, 2, 3)
    """
    wanted: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        low, _, high = part.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal() and len(part) < 20):
            raise fail("ranks", "expected numbers and ranges such as 0,3,8-15", part[:40])
        wanted |= {rank for rank in known if int(low) <= rank <= int(high or low)}
    return tuple(sorted(wanted))


def lanes(pair: Pair, view: View) -> Lanes:
    """Lay the events of the wanted ranks out: for each rank and stream, the first run above the second."""
    ranks = list(view.ranks) or all_ranks(pair)
    streams = list(dict.fromkeys(stream for step in pair.steps for stream in step.streams))
    by_rank = len(ranks) * len(streams) * len(pair.steps) > MAX_STREAM_LANES
    room = MAX_LANES // (len(pair.steps) * (1 if by_rank else len(streams)))
    left_out = max(0, len(ranks) - room)
    if left_out:  # evenly, the first and the last among them
        ranks = sorted({ranks[i] for i in np.linspace(0, len(ranks) - 1, room).round().astype(int)})
    names: list[str] = []
    parts: list[tuple[int, NDArray[np.int32], int]] = []
    for rank in ranks:
        for stream in [None] if by_rank else streams:
            for side, step in enumerate(pair.steps):
                rows = pair.rows_of(side, rank)
                at = np.arange(rows.start, rows.stop, dtype=np.int32)
                if stream is not None:
                    at = at[step.stream[at] == (step.streams.index(stream) if stream in step.streams else -1)]
                    if not len(at):
                        continue
                parts.append((side, at, len(names)))
                name = f"rank {rank}" + (f" {stream}" if stream else "")
                names.append(name + (f" · {pair.labels[side]}" if len(pair.steps) > 1 else ""))
    return _gathered(pair, view, names, parts, by_rank=by_rank, left_out=left_out)


def _gathered(
    pair: Pair,
    view: View,
    names: list[str],
    parts: list[tuple[int, NDArray[np.int32], int]],
    *,
    by_rank: bool,
    left_out: int,
) -> Lanes:
    counts = [len(at) for _, at, _ in parts]
    side = np.repeat(np.array([s for s, _, _ in parts], dtype=np.int8), counts)
    lane = np.repeat(np.array([on for _, _, on in parts], dtype=np.int16), counts)
    event = np.concatenate([at for _, at, _ in parts] or [np.zeros(0, dtype=np.int32)])
    start, end = np.empty(len(event)), np.empty(len(event))
    change = np.full(len(event), np.nan, dtype=np.float32)
    category = np.empty(len(event), dtype=np.int8)
    for number, step in enumerate(pair.steps):
        at: slice | NDArray[np.bool_] = slice(None) if len(pair.steps) == 1 else side == number
        rows = event[at]
        start[at] = step.start[rows] + pair.shift[number]
        end[at] = step.end[rows] + pair.shift[number]
        category[at] = step.category[rows]
        if len(pair.steps) > 1:
            change[at] = changes(pair, number)[rows]
    keep = np.ones(len(event), dtype=bool)
    if view.show in CATEGORIES:
        keep = category == CATEGORIES.index(view.show)
        if view.show not in ("compute", "wait"):  # an axis' waits tell when it was missed
            keep |= category == CATEGORIES.index("wait")
    elif by_rank:
        keep = category != CATEGORIES.index("wait")
    return Lanes(
        tuple(names),
        side[keep],
        event[keep],
        lane[keep],
        start[keep],
        end[keep],
        category[keep],
        change[keep],
        by_rank,
        left_out,
    )


def changes(pair: Pair, side: int) -> Floats:
    """log2(second run's time / first run's) of every event of a run, NaN without a partner."""
    if len(pair.steps) == 1:
        return np.full(len(pair.steps[0].rank), np.nan)
    mine, theirs, partner = pair.steps[side], pair.steps[1 - side], pair.partner[side]
    own = mine.end - mine.start
    there = partner >= 0
    other = np.where(there, (theirs.end - theirs.start)[partner], np.nan)
    first, second = (own, other) if side == 0 else (other, own)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((first > 0) & (second > 0), np.log2(second / first), np.nan)


def worst(pair: Pair, shown: Lanes) -> list[tuple[int, float]]:
    """Places in `shown`, of the last run, whose time differs most from their partner's, and by how much."""
    if len(pair.steps) == 1:
        return []
    at = np.flatnonzero(shown.side == 1)
    partner = pair.partner[1][shown.event[at]]
    there = (partner >= 0) & (shown.category[at] != CATEGORIES.index("wait"))
    at, partner = at[there], partner[there]
    theirs = (pair.steps[0].end - pair.steps[0].start)[partner]
    difference = (shown.end[at] - shown.start[at]) - theirs
    order = np.argsort(-np.abs(difference), kind="stable")[:MAX_WORST]
    return [(int(at[i]), float(difference[i])) for i in order]


def unpaired(pair: Pair, side: int) -> int:
    """Count the events of a run that the other one lacks, without waits."""
    if len(pair.steps) == 1:
        return 0
    waits = pair.steps[side].category == CATEGORIES.index("wait")
    return int(((pair.partner[side] < 0) & ~waits).sum())
