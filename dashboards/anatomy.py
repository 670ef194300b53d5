"""What a run's step is made of, without pairing ops: so runs of different grids, strategies and machines compare.

Means over ranks, each as often as it stands for ranks of the job. Compute, exposed communication by axis and idle time
add up to the step exactly, by the definitions of `twin.trace.metrics`. Where those that were written do not stand for
all, the means over all that the simulation wrote down take their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dashboards.catalog import Catalog, Entry
from dashboards.events import Events, Ints, events_of
from dashboards.standing import Weights, over, seconds_by_name, weights_of
from twin.compare.kinds import compute_kind, with_axis
from twin.compare.terms import Term
from twin.trace.metrics import breakdown

MAX_RANKS, MAX_STEPS = 64, 40
"""Ranks and steps that are taken apart, evenly among all: each takes some milliseconds."""
SLOWEST = "wait for the slowest device"
"""Of equal devices one is the slowest. Ranks simulated by classes all compute at its pace: in their computing is what a
typical one would have waited. Ranks that are simulated one by one wait for peers instead, as measured ones do."""
SLACK = 1e-3
"""Part of a step by which means of a manifest may miss it: such as do not add up are not taken."""


@dataclass(frozen=True)
class Anatomy:
    """Seconds of a rank and step, means; of one step, or the mean of several."""

    step_seconds: float
    parts: Mapping[str, float]
    """compute, `exposed AXIS`, idle, in predictions by classes of ranks `SLOWEST`: they add up to the step."""
    phases: Mapping[str, float]
    """Compute by phase of the step."""
    kinds: Mapping[str, float]
    """Device work by kind, and collectives by kind and axis, hidden or not."""
    streams: Mapping[str, float]
    """For how long each stream is busy; waits are not."""


@dataclass(frozen=True)
class Anatomies:
    """A run's step of median length, and each of its steps."""

    middle: Anatomy
    steps: Mapping[int, Anatomy]
    parts_over: str = "ranks"
    """Whose means parts and phases are: `ranks`, or such as `4 of 64 ranks` where they do not stand for the others."""
    kinds_over: str = "ranks"
    """Whose means kinds and streams are, which no manifest has."""


def anatomies_of(catalog: Catalog, entry: Entry) -> Anatomies:
    """Take the steps of a run apart, or take what was found before. Raises DescriptionError."""

    def made() -> Anatomies:
        events = events_of(catalog, entry)
        weights = weights_of(catalog, entry, events)
        found, shown = take_apart(events, weights), _shown(events.ranks)
        whose = over(entry, len(shown), sum(weights.get(rank, 1) for rank in shown.tolist()))
        figures = entry.head.get("figures")
        drawn = isinstance(figures, dict) and figures.get("engine") == "ranks"  # its waits for others are idle time
        if whose == "ranks" and not drawn:
            return replace(
                found,
                middle=_at_typical_pace(entry, found.middle),
                steps={number: _at_typical_pace(entry, step) for number, step in found.steps.items()},
            )
        said = _of_all(entry, found.middle) if len(found.steps) == 1 else None
        if said is None:
            return replace(found, parts_over=whose, kinds_over=whose)
        return Anatomies(said, dict.fromkeys(found.steps, said), kinds_over=whose)

    return catalog.kept(entry, "anatomy", made)


def _of_all(entry: Entry, found: Anatomy) -> Anatomy | None:
    """Put what a simulation wrote down as means over all ranks in place of those of some; None where it did not."""
    figures = entry.head.get("figures")
    if entry.kind != "predicted" or not isinstance(figures, dict):
        return None
    exposed, phases = seconds_by_name(figures.get("exposed_by_axis")), seconds_by_name(figures.get("compute_by_phase"))
    device = seconds_by_name({name: figures.get(name) for name in ("compute_seconds", "slowest_device_wait_seconds")})
    rest = seconds_by_name({"idle": figures.get("idle_seconds"), "step": figures.get("step_seconds")})
    if not (exposed and phases and device and rest) or sum(phases.values()) <= 0:
        return None
    compute, slowest = device["compute_seconds"], device["slowest_device_wait_seconds"]
    parts = {"compute": compute, **{f"exposed {axis}": value for axis, value in exposed.items() if value > 0}}
    parts |= {"idle": rest["idle"], **({SLOWEST: slowest} if slowest > 0.0 else {})}
    if not math.isclose(sum(parts.values()), rest["step"], rel_tol=SLACK):
        return None
    share = compute / sum(phases.values())
    return replace(
        found, step_seconds=rest["step"], parts=parts, phases={name: share * value for name, value in phases.items()}
    )


def _at_typical_pace(entry: Entry, found: Anatomy) -> Anatomy:
    """Tell computing from the wait for the slowest device that is in it; such as it is where the run does not say."""
    figures = entry.head.get("figures")
    wait = figures.get("slowest_device_wait_seconds") if isinstance(figures, dict) else None
    said = seconds_by_name({SLOWEST: wait}) if entry.kind == "predicted" else {}
    slowest, compute = said.get(SLOWEST, 0.0), found.parts.get("compute", 0.0)
    if not 0.0 < slowest < compute:
        return found
    share = 1.0 - slowest / compute
    return replace(
        found,
        parts={**found.parts, "compute": share * compute, SLOWEST: slowest},
        phases={name: share * seconds for name, seconds in found.phases.items()},
    )


def take_apart(events: Events, weights: Weights) -> Anatomies:
    """Take each step apart; `weights` say how many ranks one stands for, one each where they do not."""
    numbers = events.steps
    chosen = [numbers[i] for i in sorted({int(i) for i in np.linspace(0, len(numbers) - 1, MAX_STEPS).round()})]
    steps = {number: _step(events, number, weights) for number in chosen} if numbers else {}
    if not steps:
        return Anatomies(Anatomy(0.0, {}, {}, {}, {}), {})
    middle = sorted(steps, key=lambda n: steps[n].step_seconds)[(len(steps) - 1) // 2]
    return Anatomies(steps[middle], steps)


def _shown(ranks: Ints) -> Ints:
    """Return the ranks that are taken apart, evenly among all."""
    return ranks[sorted({int(i) for i in np.linspace(0, len(ranks) - 1, MAX_RANKS).round()})]


def _step(events: Events, number: int, weights: Weights) -> Anatomy:
    at = np.flatnonzero(events.step == number)
    begin, end = events.span_ns(at)
    length = end - begin
    shown = _shown(np.unique(events.rank[at]).astype(np.int64))
    total = sum(weights.get(int(rank), 1) for rank in shown) or 1
    sums: tuple[dict[str, float], ...] = ({}, {}, {}, {})
    for rank in shown.tolist():
        rows = at[events.rank[at] == rank]
        share = weights.get(rank, 1) / total / 1e9
        for found, part in zip(sums, _rank(events, rows, length), strict=True):
            for name, value in part.items():
                found[name] = found.get(name, 0.0) + share * value
    return Anatomy(length / 1e9, *sums)


def _rank(events: Events, rows: np.ndarray, length: int) -> tuple[dict[str, float], ...]:
    """Take one rank's step apart, nanoseconds: parts, phases, kinds, streams."""
    start, end = events.start_ns[rows].astype(np.float64), events.end_ns[rows].astype(np.float64)
    took = end - start
    compute, collective = events.kind.are("compute")[rows], events.kind.are("collective")[rows]
    wait = events.kind.are("wait")[rows]
    axis = np.array([events.axis.words[code] if code >= 0 else "" for code in events.axis.code[rows].tolist()])
    axes = list(dict.fromkeys(axis[collective].tolist()))
    found = breakdown(
        float(length),
        (start[compute], end[compute]),
        {a: (start[collective & (axis == a)], end[collective & (axis == a)]) for a in axes},
        {a: (start[wait & (axis == a)], end[wait & (axis == a)]) for a in axes},
    )
    parts = {"compute": found.compute, **{f"exposed {a}": v for a, v in found.exposed_by_axis.items()}}
    parts["idle"] = found.idle
    phases: dict[str, float] = {}
    kinds: dict[str, float] = {}
    streams: dict[str, float] = {}
    for place, row in enumerate(rows.tolist()):
        if wait[place]:
            continue
        name, phase = events.name[row], events.phase[row]
        kind = compute_kind(name, phase) if compute[place] else with_axis(name, axis[place])
        kinds[kind] = kinds.get(kind, 0.0) + took[place]
        stream = events.stream[row]
        streams[stream] = streams.get(stream, 0.0) + took[place]
        if compute[place]:
            phases[phase] = phases.get(phase, 0.0) + took[place]
    return parts, phases, kinds, streams


def terms_between(first: Anatomy, second: Anatomy) -> list[Term]:
    """Return what lies between two steps, part by part; the parts add up to the difference."""
    names = dict.fromkeys([*first.parts, *second.parts])
    pairs = [(name, first.parts.get(name, 0.0), second.parts.get(name, 0.0)) for name in names]
    return [Term(name.replace(" ", "_"), name, a, b, b - a) for name, a, b in pairs]
