"""One op looked at: how long, how large, who met in it and when, who came last and why, the same op elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboards.events import CATEGORIES, WAIT, Events
from dashboards.parts import seconds
from dashboards.timeline.meetings import Meetings, before, collective_of
from dashboards.timeline.step import Step
from dashboards.timeline.view import Pair
from twin.description.units import format_memory, format_si

MAX_MEMBERS = 512
"""Rows of a table of members: of more those who came last."""


@dataclass(frozen=True)
class Looked:
    """What is said of an op."""

    title: str
    facts: tuple[tuple[str, str], ...]
    why: str
    """Why a wait is there; empty of what is no wait and no collective."""
    members: tuple[dict[str, Any], ...]
    elsewhere: tuple[dict[str, Any], ...]
    """The same op of other ranks, or of other steps of the same rank."""


def chosen_op(text: str, pair: Pair) -> tuple[int, int] | None:
    """Read the op of an address, such as 1.345: which run, and which event of its step; None if there is none."""
    side, _, event = text.partition(".")
    if not (side.isdecimal() and event.isdecimal() and len(text) < 16):
        return None
    found = int(side), int(event)
    return found if found[0] < len(pair.steps) and found[1] < len(pair.steps[found[0]].rank) else None


def work_words(flops: float, length: float) -> str:
    """Say how much an op computes, and at what rate.

    >>> work_words(2e9, 1e-3), work_words(12.0, 0.0)
    ('2 GFLOP, 2 TFLOP/s', '12 FLOP')
    """
    rate = f", {format_si(flops / length, 'FLOP/s', digits=3)}" if length > 0 else ""
    return format_si(flops, "FLOP", digits=3) + rate


def looked_at(pair: Pair, events: tuple[Events, ...], meetings: Meetings, side: int, event: int) -> Looked:
    """Look at an op of one of the runs."""
    step, of = pair.steps[side], events[side]
    row, rank = int(step.row[event]), int(step.rank[event])
    name = step.names[step.base[event]]
    own = float(step.end[event] - step.start[event])
    facts = [("rank", str(rank)), ("stream", of.stream[row]), ("run", pair.labels[side])]
    facts += [("from", seconds(float(step.start[event]))), ("takes", seconds(own))]
    partner = int(pair.partner[side][event])
    if partner >= 0:
        other = pair.steps[1 - side]
        theirs = float(other.end[partner] - other.start[partner])
        facts.append((f"in the {pair.labels[1 - side]} run", seconds(theirs)))
    if of.flops[row]:
        facts.append(("work", work_words(float(of.flops[row]), own)))
    if of.bytes[row]:
        facts.append(("size", format_memory(float(of.bytes[row]))))
    if of.axis[row]:
        facts.append(("group", f"{of.axis[row]}, number {int(of.group[row])}"))
    met = collective_of(step, event) if step.category[event] == CATEGORIES.index(WAIT) else event
    there = meetings.members(met) if met is not None else np.zeros(0, dtype=np.int32)
    rows = _members(step, meetings, there) if len(there) > 1 else []
    why = why_waited(pair, meetings, side, event)
    return Looked(name, tuple(facts), why, tuple(rows), tuple(_elsewhere(step, of, event)))


def why_waited(pair: Pair, meetings: Meetings, side: int, event: int) -> str:
    """Say who came last to what is waited for, how much later than the others, and what it did before."""
    step = pair.steps[side]
    is_wait = step.category[event] == CATEGORIES.index(WAIT)
    met = collective_of(step, event) if is_wait else event
    if met is None or meetings.met[met] < 0:
        return ""
    there = meetings.members(met)
    if len(there) < 2:
        return "Its other members were not recorded: this run was written with a few ranks of each kind."
    last, second = int(there[-1]), int(there[-2])
    arrival = meetings.arrival
    rank, late = int(step.rank[last]), float(arrival[last] - arrival[there[0]])
    transfer = float(step.end[met] - max(step.start[met], arrival[last]))
    words = f"Rank {rank} came last, {seconds(late)} after the first"
    words += f" and {seconds(float(arrival[last] - arrival[second]))} after the one before it"
    doing = before(step, rank, float(arrival[last]))
    if doing is not None:
        length = float(step.end[doing] - step.start[doing])
        words += f". Just before, it did {step.names[step.base[doing]]}, {seconds(length)}"
        idle = float(arrival[last] - step.end[doing])
        if idle > 0.1 * max(late, 1e-12):
            words += f", then nothing for {seconds(idle)}"
    return f"{words}. The transfer itself took {seconds(max(transfer, 0.0))}."


def _members(step: Step, meetings: Meetings, there: Any) -> list[dict[str, Any]]:
    first = float(meetings.arrival[there[0]])
    rows = [
        {
            "rank": int(step.rank[one]),
            "came (s)": float(meetings.arrival[one]),
            "after the first (s)": float(meetings.arrival[one]) - first,
            "transfer (s)": float(step.end[one] - step.start[one]),
            "last": "last" if number == len(there) - 1 else "",
        }
        for number, one in enumerate(there.tolist())
    ]
    return rows[::-1][:MAX_MEMBERS]


def _elsewhere(step: Step, of: Events, event: int) -> list[dict[str, Any]]:
    """The same op: of every rank in this step, and of this rank in every other one."""
    base, rank = int(step.base[event]), int(step.rank[event])
    same = np.flatnonzero(step.base == base)
    rows = [_time(step.number, int(step.rank[one]), float(step.end[one] - step.start[one])) for one in same.tolist()]
    name = step.names[base]
    codes = [n for n, word in enumerate(of.op.words) if word.partition("/")[2] == name]
    others = np.flatnonzero(np.isin(of.op.code, codes) & (of.rank == rank) & (of.step != step.number))
    rows += [_time(int(of.step[o]), rank, (int(of.end_ns[o]) - int(of.start_ns[o])) / 1e9) for o in others.tolist()]
    return sorted(rows, key=lambda row: -row["takes (s)"])[:MAX_MEMBERS]


def _time(step: int, rank: int, length: float) -> dict[str, Any]:
    return {"step": step, "rank": rank, "takes (s)": length}
