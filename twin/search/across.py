"""A search over strategies: the best of each, what trades time for memory, and the winner.

What a job file says for every strategy (model, machine, batch, precision, …) holds for all; keys of one strategy
hold for that one. Grids, micro-batches and the strategies' own options are open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from twin.description.job import AUTO, Job
from twin.description.problems import DescriptionError, Problem, did_you_mean, fail
from twin.engine.crew import Workers, processes
from twin.search.best import Given
from twin.search.candidates import Refuse
from twin.search.entries import Progress, RankedCandidate
from twin.search.over import MICRO
from twin.search.search import Search, search
from twin.search.tables import entry_json, search_json
from twin.strategies import load_job, named, names, under

EVERY = "all"
LEFT_OUT = ("ddp",)
"""Strategies whose only grid is one of another's."""


@dataclass(frozen=True)
class Across:
    """What the strategies can do; at least one can run."""

    searches: Mapping[str, Search]
    """By strategy, the fastest first."""
    reasons: Mapping[str, str]
    """Why the others cannot."""
    wall_seconds: float

    @property
    def best(self) -> Search:
        """The search with the fastest of all."""
        return next(iter(self.searches.values()))

    @property
    def pareto(self) -> list[tuple[str, RankedCandidate]]:
        """Simulated candidates that are faster than all that take no more memory, fastest first."""
        done = [
            (name, entry) for name, one in self.searches.items() for entry in one.entries if entry.figures is not None
        ]
        done.sort(key=lambda found: (found[1].figures.step_seconds if found[1].figures else 0.0, _bytes(found[1])))
        front: list[tuple[str, RankedCandidate]] = []
        for name, entry in done:
            if not front or _bytes(entry) < _bytes(front[-1][1]):
                front.append((name, entry))
        return front


def _bytes(entry: RankedCandidate) -> float:
    memory = entry.candidate.memory
    return float("inf") if memory is None else memory.per_rank_bytes


def parse_strategies(text: str) -> list[str]:
    """Read `all`, `auto` or `four_d,megatron`; raises DescriptionError for a name that is none.

    `auto`, of a job that leaves its strategy open, is every strategy there is.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == [AUTO]:
        return names()
    if words == [EVERY]:
        return [name for name in names() if name not in LEFT_OUT]
    for word in words:
        if word not in names():
            raise fail("--strategy", did_you_mean(word, (*names(), EVERY)), word)
    if not words:
        raise fail("--strategy", f"expected {EVERY}, or names of strategies: {', '.join(names())}", text)
    return list(dict.fromkeys(words))


Keys = Given | Mapping[str, Any]
"""A job as it was given: a file with overrides, or keys whose paths are absolute."""


def job_of(given: Keys, strategy: str, keys: Mapping[str, Any] = MappingProxyType({})) -> Job:
    """Return the given job under a strategy, with grid and micro-batch open, and these keys where it has none.

    Raises DescriptionError if its common keys break a rule there.
    """
    own = under(given.absolute if isinstance(given, Given) else given, strategy)
    raw = {**keys, **own, "grid": "auto"}
    if isinstance(batch := raw.get("batch"), dict):
        raw["batch"] = {**batch, "micro_sequences": "auto"}
    return load_job(raw)


def openings(
    given: Keys, strategies: Sequence[str], keys: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> tuple[dict[str, tuple[Job, frozenset[str]]], dict[str, str]]:
    """Return the job under each of these strategies with the options that are varied there; and why others cannot."""
    opened: dict[str, tuple[Job, frozenset[str]]] = {}
    reasons: dict[str, str] = {}
    for name in strategies:
        try:
            opened[name] = job_of(given, name, keys.get(name, {})), frozenset((*named(name).worth_varying, MICRO))
        except DescriptionError as error:
            reasons[name] = "; ".join(map(str, error.problems))
    return opened, reasons


def search_across(
    given: Keys,
    strategies: Sequence[str],
    *,
    keys: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    refuse: Refuse | None = None,
    workers: Workers = 1,
    progress: Progress = lambda _done, _all: None,
) -> Across:
    """Search a job under each of these strategies, with all options that each varies, but what `refuse` is against.

    `keys` are of strategies, by their names: what each is opened with where the job does not say it.
    Raises DescriptionError if it can run under none of them.
    """
    begin = time.perf_counter()
    found: dict[str, Search] = {}
    opened, reasons = openings(given, strategies, keys)
    with processes(workers) as crew:
        for number, (name, (job, over)) in enumerate(opened.items()):

            def advance(done: int, whole: int, number: int = number) -> None:
                progress(round(1000 * (number + done / max(whole, 1))), 1000 * len(opened))

            run = partial(search, job, refuse=refuse, prune=True, workers=crew, progress=advance)
            try:
                found[name] = _with_room(run, over, frozenset(named(name).makes_room))
            except DescriptionError as error:
                reasons[name] = "; ".join(map(str, error.problems))
    if not found:
        raise DescriptionError([Problem(f"strategy {name}", reason) for name, reason in reasons.items()])
    ordered = dict(sorted(found.items(), key=lambda item: item[1].best.step_seconds))
    return Across(ordered, reasons, time.perf_counter() - begin)


def _with_room(run: Callable[..., Search], over: frozenset[str], further: frozenset[str]) -> Search:
    """Search over options; over those that make room too, if nothing fits without. What it lacks without is said."""
    try:
        return run(over=over)
    except DescriptionError as without:
        if not further:
            raise
        try:
            return run(over=over | further)
        except DescriptionError:
            raise without from None


def across_json(found: Across) -> dict[str, Any]:
    """Return the object that `fourfold search --strategy … --json` prints: of the winner, and by strategy."""
    return search_json(found.best) | {
        "strategy": found.best.job.strategy,
        "strategies": [
            {
                "strategy": name,
                "candidates": len(one.entries),
                "feasible": one.feasible,
                "simulated": one.simulated,
                "pruned": one.pruned,
                "best": entry_json(one.entries[0]),
                "wall_seconds": one.wall_seconds,
            }
            for name, one in found.searches.items()
        ],
        "cannot_run": dict(found.reasons),
        "pareto": [{"strategy": name, **entry_json(entry)} for name, entry in found.pareto],
        "wall_seconds": found.wall_seconds,
    }
