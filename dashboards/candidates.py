"""The candidates of a search, read strictly from what `fourfold search` wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from dashboards.catalog import Catalog, Entry
from dashboards.events import mesh_of
from twin.description.grid import Mesh
from twin.description.job import DEFAULT_STRATEGY
from twin.description.problems import DescriptionError, did_you_mean, fail
from twin.description.strict_yaml import read_yaml
from twin.search.best import settled
from twin.strategies import Variant, named, names, under

MAX_CANDIDATES, MAX_WORDS, MAX_CATEGORIES = 200_000, 400, 20
"""Of a file that may come from a stranger: what is more is damage, or would fill the server's memory."""
MAX_JOB_BYTES = 1 << 20
"""A job file has a few kilobytes."""
MAX_SIZE = 1 << 40
"""Of an axis, a rank count or a place: more is damage, and plotly could not draw it."""
BEST = "best.yaml"


@dataclass(frozen=True)
class SavedCandidate:
    """One way to run a job, as a search found it. Times in seconds; None where there are none."""

    number: int
    """Its place in the file."""
    ranks: int
    grid: Mesh
    options: Variant
    micro_sequences: int | None
    feasible: bool
    reason: str
    hindrance: str
    step_seconds: float | None
    rank: int | None
    """Place in simulated time, from 1."""
    model_rank: int | None
    """Place by the published communication model, from 1."""
    memory_bytes: float | None
    capacity_bytes: float | None
    memory: Mapping[str, float]
    """Bytes by category."""
    compute_seconds: float | None
    exposed_seconds: float | None
    exposed_by_axis: Mapping[str, float]
    idle_seconds: float | None
    tokens_per_second: float | None
    percent_of_peak: float | None
    energy_joules: float | None
    """Of all devices in a step."""
    strategy: str
    several: bool = False
    """True if the search is over several strategies, whose grids have other axes."""
    place: int | None = None
    """Place in simulated time among all of the search, from 1; `rank` is that within its strategy."""
    billed_joules: float | None = None
    """Of a step, with what nodes and facility draw if the job says so."""
    by_energy: bool = False
    """Whether the search was for the fewest joules, by which `place` is then."""

    @property
    def axes(self) -> str:
        """Names of its axes, outermost first; of several strategies' what they are called together."""
        return "grid" if self.several else " × ".join(self.grid.axes)

    @property
    def name(self) -> str:
        """Sizes of its grid, outermost axis first; of several strategies' with strategy and axes.

        Axes of size 1 are left out then: some have eight.
        """
        if not self.several:
            return " × ".join(map(str, self.grid.sizes))
        sizes = [f"{axis} {size}" for axis, size in zip(self.grid.axes, self.grid.sizes, strict=True) if size > 1]
        return f"{self.strategy}, {' × '.join(sizes) or 'one rank'}"


def candidates_of(catalog: Catalog, entry: Entry) -> tuple[SavedCandidate, ...]:
    """Read the candidates of a search, or take those read before. Raises DescriptionError."""
    if entry.kind != "search":
        raise fail(entry.label, f"is a {entry.kind}, not a search; choose a search on the page Runs")
    return catalog.kept(entry, "candidates", lambda: _read(entry))


def _read(entry: Entry) -> tuple[SavedCandidate, ...]:
    ranking = entry.head.get("ranking")
    if not isinstance(ranking, list) or not ranking:
        raise fail(f"{entry.label}: ranking", "expected a list of candidates; write the search again")
    if len(ranking) > MAX_CANDIDATES:
        raise fail(f"{entry.label}: ranking", f"has more than {MAX_CANDIDATES:,} candidates", len(ranking))
    found, winner = [], entry.head.get("strategy", DEFAULT_STRATEGY)
    known = names()  # listed once: a search has tens of thousands of candidates
    if winner not in known:
        raise fail(f"{entry.label}: strategy", did_you_mean(str(winner), known), winner)
    for number, raw in enumerate(ranking):
        try:
            found.append(_candidate(number, raw, winner, known))
        except (TypeError, ValueError, KeyError) as error:
            words = str(error) if isinstance(error, DescriptionError | WrongError) else "is not what a search writes"
            raise fail(f"{entry.label}: ranking.{number}", words[:MAX_WORDS]) from None
    if entry.head.get("by") == "energy":  # its places are those in joules
        found = _by_time(found)
    if len({candidate.strategy for candidate in found}) < 2:
        return tuple(found)
    done = sorted((c for c in found if c.rank is not None), key=lambda c: c.step_seconds or 0.0)
    place = {candidate.number: number for number, candidate in enumerate(done, start=1)}
    return tuple(replace(c, several=True, place=place.get(c.number)) for c in found)


def _by_time(found: Sequence[SavedCandidate]) -> list[SavedCandidate]:
    """Give candidates of each strategy and number of ranks their place in simulated time as rank; ties as in file."""
    known = (c for c in found if c.step_seconds is not None)
    done = sorted(known, key=lambda c: (c.strategy, c.ranks, c.step_seconds or 0.0))
    first: dict[tuple[str, int], int] = {}
    ranks = {c.number: at - first.setdefault((c.strategy, c.ranks), at) + 1 for at, c in enumerate(done)}
    return [replace(c, rank=ranks.get(c.number), by_energy=True) for c in found]


class WrongError(ValueError):
    """Says which key is wrong."""


def _variant(strategy: str, options: Mapping[str, Any]) -> Variant:
    try:
        return named(strategy).variant_of(options)
    except ValueError as error:
        raise WrongError(str(error)) from None


def _candidate(number: int, raw: Any, winner: str, known: Sequence[str]) -> SavedCandidate:
    if not isinstance(raw, dict) or not isinstance(raw.get("grid"), dict):
        raise WrongError("expected a mapping with a grid")
    strategy = raw.get("strategy", winner)  # a search under one strategy says it once
    if strategy not in known:
        raise WrongError(f"strategy: {did_you_mean(str(strategy)[:MAX_WORDS], known)}")
    grid = mesh_of(raw["grid"])
    if grid is None:
        raise WrongError("grid: expected the size of each axis, a whole number from 1")
    of_all = [axis for axis in named(strategy).axes if axis not in named(strategy).grid.rare_axes]
    if lacking := [axis for axis in of_all if axis not in grid.axes]:
        raise WrongError(f"grid: lacks {', '.join(lacking)} of {strategy}")
    options, memory = _mapping(raw, "options"), _mapping(raw, "memory")
    feasible = _truth(raw, "feasible")
    return SavedCandidate(
        number=number,
        ranks=grid.ranks,
        grid=grid,
        options=_variant(strategy, options),
        micro_sequences=_whole(options, "micro_sequences"),
        feasible=feasible,
        reason=_words(raw, "reason"),
        hindrance=_words(raw, "hindrance"),
        step_seconds=_number(raw, "step_seconds"),
        rank=_whole(raw, "rank"),
        model_rank=_whole(raw, "communication_model_rank"),
        memory_bytes=_number(memory, "per_rank_bytes"),
        capacity_bytes=_number(memory, "capacity_bytes"),
        memory=_numbers(memory, "by_category"),
        compute_seconds=_number(raw, "compute_seconds"),
        exposed_seconds=_number(raw, "exposed_communication_seconds"),
        exposed_by_axis=_numbers(raw, "exposed_by_axis"),
        idle_seconds=_number(raw, "idle_seconds"),
        tokens_per_second=_number(raw, "tokens_per_second"),
        percent_of_peak=_number(raw, "hardware_percent_of_peak"),
        energy_joules=_number(raw, "energy_joules"),
        strategy=strategy,
        place=_whole(raw, "rank"),
        billed_joules=_number(raw, "billed_joules"),
    )


def _mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WrongError(f"{key}: expected a mapping")
    return value


def _number(raw: Mapping[str, Any], key: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise WrongError(f"{key}: expected a number, not below 0")
    return float(value)


def _numbers(raw: Mapping[str, Any], key: str) -> dict[str, float]:
    inside = _mapping(raw, key)
    if len(inside) > MAX_CATEGORIES:
        raise WrongError(f"{key}: has more than {MAX_CATEGORIES} entries")
    return {str(name)[:60]: _number(inside, name) or 0.0 for name in inside}


def _whole(raw: Mapping[str, Any], key: str) -> int | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_SIZE:
        raise WrongError(f"{key}: expected a whole number, not below 0")
    return value


def _truth(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key)
    if not isinstance(value, bool):
        raise WrongError(f"{key}: expected true or false")
    return value


def _words(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise WrongError(f"{key}: expected text")
    return (value or "")[:MAX_WORDS]


def job_of_candidate(catalog: Catalog, entry: Entry, candidate: SavedCandidate) -> dict[str, Any]:
    """Return the job of a candidate: the search's own with its grid and options.

    No path that the file names is opened. Raises DescriptionError.
    """
    path = catalog.file(entry, BEST)
    if not path.is_file() or path.stat().st_size > MAX_JOB_BYTES:
        raise fail(f"{entry.label}/{BEST}", "is missing or too large; write the search again")
    if candidate.micro_sequences is None:
        raise fail(candidate.name, f"cannot run: {candidate.reason}")
    raw = read_yaml(path)
    if not isinstance(raw.get("batch"), dict):
        raise fail(f"{entry.label}/{BEST}: batch", "expected a mapping")
    for key in ("overlap", "data_reduction"):
        if not isinstance(raw.get(key) or {}, dict):
            raise fail(f"{entry.label}/{BEST}: {key}", "expected a mapping")
    return settled(
        under(raw, candidate.strategy), candidate.grid, candidate.micro_sequences, candidate.options
    )  # of another strategy than the best: with the keys that hold for every one


def job_text(catalog: Catalog, entry: Entry, candidate: SavedCandidate) -> str:
    """Return the job file of a candidate. Raises DescriptionError."""
    made = job_of_candidate(catalog, entry, candidate)
    place = "" if candidate.place is None else f", place {candidate.place:,}"
    return f"# A candidate that `fourfold search` found: {candidate.name}{place}.\n" + yaml.safe_dump(
        made, sort_keys=False, allow_unicode=True
    )
