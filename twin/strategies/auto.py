"""`strategy: auto`: jobs that leave open how they are cut, and what was chosen for one.

Such a job has the keys of every job; those of one strategy, and a grid, would say what is left open. `twin.search`
chooses; what it chose is handed on as overrides of the job file, which whoever reads that file can apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from twin.description.job import AUTO, Job
from twin.description.problems import Problem
from twin.strategies.registry import named, names


class AutoJob(Job):
    """A job whose strategy is chosen by simulation."""

    strategy: Literal["auto"] = "auto"
    """The fastest of all strategies; when training, of those that train."""
    grid: Literal["auto"] = "auto"
    """Chosen with the strategy."""


@dataclass(frozen=True)
class Chosen:
    """How a job is cut that said `strategy: auto`."""

    strategy: str
    overrides: tuple[str, ...]
    """Grid, micro-batch and options, as `KEY=VALUE` of the job file under that strategy."""
    ranks: int
    """Ranks that this is for."""
    words: str = ""
    """What was compared, and what is the fastest, for people."""


def without_own_keys(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Split a job file's keys into those of every job, and a problem for each that says what `auto` leaves open.

    Keys of no strategy at all stay, to be refused as unknown.
    """
    kept, problems = dict(raw), list[Problem]()
    owners = {name: _keys(name) for name in names()}
    for key in [key for key in raw if key not in Job.model_fields]:
        if having := [name for name, keys in owners.items() if key in keys]:
            problems.append(Problem(key, f"is a key of {_listed(having)}; {_remedy(having)}", kept.pop(key)))
    grid = raw.get("grid", AUTO)
    if grid != AUTO:
        axes = set(grid) if isinstance(grid, Mapping) else set()
        having = [name for name in names() if axes and axes <= set(named(name).axes)]
        whose = f"is a grid of {_listed(having)}" if having else "is given, but chosen with the strategy"
        problems.append(Problem("grid", f"{whose}; {_remedy(having)}", grid))
        kept["grid"] = AUTO
    return kept, problems


def _keys(strategy: str) -> set[str]:
    return {field.alias or key for key, field in named(strategy).options.model_fields.items()}


def _listed(names_: list[str]) -> str:
    *others, last = names_
    return f"{', '.join(others)} and {last}" if others else last


def _remedy(having: list[str]) -> str:
    named_ = f", or name the strategy (strategy: {having[0]})" if having else ""
    return f"leave it out under strategy: {AUTO}{named_}"
