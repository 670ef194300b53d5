"""Lanes: which events are drawn, on which lane, and how long the same op took in the other run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.events import CATEGORIES, GAP, WAIT, Floats
from dashboards.timeline.gaps import gaps_of
from dashboards.timeline.view import Pair, View, all_ranks
from twin.description.problems import fail

MAX_LANES = 256
"""More lanes than this are thinner than a few pixels each on a screen."""
MAX_STREAM_LANES = 96
"""With more, one lane stands for all streams of a rank."""
MAX_WORST = 50
"""Rows that somebody steps through with the button."""
HOST = "host"


@dataclass(frozen=True)
class Lanes:
    """Events to be drawn: which run, which event, on which lane."""

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    """Of each lane."""
    side: NDArray[np.int8]
    event: NDArray[np.int32]
    """Place in the run's step; of a gap that of the op behind it, or before it if it is the last."""
    lane: NDArray[np.int16]
    start: Floats
    end: Floats
    category: NDArray[np.int8]
    other: Floats
    """Seconds of the same op in the other run: NaN where there is none."""
    whole: tuple[bool, ...]
    """Of each lane, true if it holds all streams of a rank, or of several."""
    left_out: int
    """Ranks that there was no room for."""

    @property
    def grouped(self) -> bool:
        """True if a lane stands for several ranks: then no op has a bar of its own."""
        return any(len(of) > 1 for of in self.ranks)

    @property
    def weight(self) -> Floats | None:
        """What each event counts on its lane, which is a mean over ranks; None if once each."""
        if not self.grouped:
            return None
        return np.array([1.0 / max(len(of), 1) for of in self.ranks])[self.lane]

    @property
    def change(self) -> Floats:
        """log2(second run's time / first run's) of every event: NaN without a partner."""
        own = self.end - self.start
        first, second = np.where(self.side == 0, own, self.other), np.where(self.side == 0, self.other, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where((first > 0) & (second > 0), np.log2(second / first), np.nan)


@dataclass(frozen=True)
class _Part:
    """Events of one run on one lane."""

    side: int
    lane: int
    event: NDArray[np.int32]
    start: Floats
    end: Floats
    other: Floats


def lanes(pair: Pair, view: View) -> Lanes:
    """Lay the events of the wanted ranks out: for each rank and stream, the first run above the second."""
    known = all_ranks(pair)
    wanted = list(view.ranks) or known
    ranks = [*view.pins, *(rank for rank in wanted if rank not in view.pins)]
    if view.lay == HOST or (pair.grid is not None and view.lay in pair.grid.axes):
        return _of_groups(pair, view, ranks)
    streams = list(dict.fromkeys(stream for step in pair.steps for stream in step.streams))
    by_rank = view.lay == "rank" or len(ranks) * len(streams) * len(pair.steps) > MAX_STREAM_LANES
    single = by_rank or view.show == GAP  # gaps lie between the ops of all streams
    room = MAX_LANES // (len(pair.steps) * (1 if single else len(streams)))
    left_out = max(0, len(ranks) - room)
    if left_out:  # evenly, the first and the last among them; pins stay
        rest = ranks[len(view.pins) :]
        most = max(room - len(view.pins), 0)
        ranks = ranks[: len(ranks) - len(rest)] + [rest[i] for i in _evenly(len(rest), most)]
    names: list[str] = []
    of: list[tuple[int, ...]] = []
    parts: list[_Part] = []
    shown: list[str | None] = []
    for rank in ranks:
        turned = rank in view.turned and view.show != GAP
        for stream in [None] if single != turned else streams:
            for side in range(len(pair.steps)):
                part = _part(pair, view, side, rank, stream, len(names))
                if stream is not None and not len(part.event):
                    continue
                parts.append(part)
                of.append((rank,))
                shown.append(stream)
                name = f"rank {rank}" + (f" {stream}" if stream else "") + (" ⚲" if rank in view.pins else "")
                names.append(name + (f" · {pair.labels[side]}" if len(pair.steps) > 1 else ""))
    whole = [stream is None and view.show != GAP for stream in shown]
    return _gathered(pair, view, names, of, parts, whole, left_out=left_out)


def _evenly(count: int, most: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, most).round()}) if count and most else []


def _of_groups(pair: Pair, view: View, ranks: list[int]) -> Lanes:
    """Lay all ranks of a host, or of a place along an axis, onto one lane."""
    place = _place_of(pair, view.lay)
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(place(rank), []).append(rank)
    shown = sorted(groups)[: MAX_LANES // len(pair.steps)]
    names: list[str] = []
    of: list[tuple[int, ...]] = []
    parts: list[_Part] = []
    for group in shown:
        for side in range(len(pair.steps)):
            parts += [_part(pair, view, side, rank, None, len(names)) for rank in groups[group]]
            several = f", {len(groups[group])} ranks" if len(groups[group]) > 1 else ""
            names.append(f"{view.lay} {group}{several}" + (f" · {pair.labels[side]}" if len(pair.steps) > 1 else ""))
            of.append(tuple(groups[group]))
    left_out = sum(len(groups[group]) for group in groups if group not in shown)
    return _gathered(pair, view, names, of, parts, [True] * len(names), left_out=left_out)


def _place_of(pair: Pair, lay: str) -> Callable[[int], int]:
    if lay == HOST:
        if pair.ranks_per_host < 1:
            raise fail("lay", "the job does not say how many ranks a host has; choose an axis", lay)
        return lambda rank: rank // pair.ranks_per_host
    assert pair.grid is not None
    grid = pair.grid
    return lambda rank: grid.coordinates(rank)[lay]


def _part(pair: Pair, view: View, side: int, rank: int, stream: str | None, lane: int) -> _Part:
    """Take the events of a rank on one stream, on all, or the gaps between them."""
    step, rows = pair.steps[side], pair.rows_of(side, rank)
    shift = pair.shift[side]
    if view.show == GAP:
        gaps = gaps_of(step, rows)
        other = _other_gaps(pair, side, rank, gaps.event)
        return _Part(side, lane, gaps.event, gaps.start + shift, gaps.end + shift, other)
    at = np.arange(rows.start, rows.stop, dtype=np.int32)
    if stream is not None:
        at = at[step.stream[at] == (step.streams.index(stream) if stream in step.streams else -1)]
    at = at[_wanted(step.category[at], view, whole=stream is None)]
    if len(pair.steps) == 1:
        other = np.full(len(at), np.nan)
    else:
        theirs, partner = pair.steps[1 - side], pair.partner[side][at]
        other = np.where(partner >= 0, (theirs.end - theirs.start)[partner], np.nan)
    return _Part(side, lane, at, step.start[at] + shift, step.end[at] + shift, other)


def _wanted(category: NDArray[np.int8], view: View, *, whole: bool) -> NDArray[np.bool_]:
    """Tell which events are drawn; where a lane holds all streams of a rank, no waits: they would hide the rest."""
    wait = category == CATEGORIES.index(WAIT)
    if view.show not in CATEGORIES:
        return ~wait if whole else np.ones(len(category), dtype=bool)
    keep = category == CATEGORIES.index(view.show)
    # an axis' waits tell when it was missed
    return keep if view.show in ("compute", WAIT) else keep | wait


def _other_gaps(pair: Pair, side: int, rank: int, event: NDArray[np.int32]) -> Floats:
    """Return how long the same rank stood still at the same op in the other run; NaN if it lacks the op."""
    if len(pair.steps) == 1:
        return np.full(len(event), np.nan)
    theirs = gaps_of(pair.steps[1 - side], pair.rows_of(1 - side, rank))
    length = dict(zip(theirs.event.tolist(), (theirs.end - theirs.start).tolist(), strict=True))
    partner = pair.partner[side][event].tolist()
    return np.array([length.get(one, 0.0) if one >= 0 else np.nan for one in partner], dtype=np.float64)


def _gathered(
    pair: Pair,
    view: View,
    names: list[str],
    of: list[tuple[int, ...]],
    parts: list[_Part],
    whole: list[bool],
    *,
    left_out: int,
) -> Lanes:
    counts = [len(part.event) for part in parts]
    side = np.repeat(np.array([part.side for part in parts], dtype=np.int8), counts)
    lane = np.repeat(np.array([part.lane for part in parts], dtype=np.int16), counts)
    none: list[Floats] = [np.zeros(0)]
    event = np.concatenate([p.event for p in parts] or [np.zeros(0, dtype=np.int32)])
    start, end, other = (np.concatenate([getattr(p, n) for p in parts] or none) for n in ("start", "end", "other"))
    category = np.empty(len(event), dtype=np.int8)
    for number, step in enumerate(pair.steps):
        at = side == number
        category[at] = step.category[event[at]]
    if view.show == GAP:
        category[:] = CATEGORIES.index(GAP)
    return Lanes(tuple(names), tuple(of), side, event, lane, start, end, category, other, tuple(whole), left_out)


def worst(pair: Pair, shown: Lanes) -> list[tuple[int, float]]:
    """Places in `shown` of ops whose time differs most from that in the other run, and by how much.

    Of a run alone the ops that take longest, and how long they take.
    """
    at = np.flatnonzero((shown.side == len(pair.steps) - 1) & (shown.category != CATEGORIES.index(WAIT)))
    difference = (shown.end - shown.start)[at]
    if len(pair.steps) > 1:
        difference = difference - shown.other[at]
        at, difference = at[~np.isnan(difference)], difference[~np.isnan(difference)]
    size = np.abs(difference)
    if len(size) > MAX_WORST:  # to sort millions for fifty of them takes a moment
        large = np.flatnonzero(size >= np.partition(size, -MAX_WORST)[-MAX_WORST])
    else:
        large = np.arange(len(size))
    order = large[np.argsort(-size[large], kind="stable")][:MAX_WORST]
    return [(int(at[i]), float(difference[i])) for i in order]


def unpaired(pair: Pair, side: int) -> int:
    """Count the events of a run that the other one lacks, without waits."""
    if len(pair.steps) == 1:
        return 0
    waits = pair.steps[side].category == CATEGORIES.index(WAIT)
    return int(((pair.partner[side] < 0) & ~waits).sum())
