"""Leave out of a job what its own grid could have and another may not, such as layers of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, combinations
from typing import Any

from twin.description.job import Job
from twin.strategies.registry import strategy_of


def loosened(job: Job) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Yield the job, then the job without keys that some grids cannot have, as few as possible first.

    With each come the keys that were left out, and what they were.
    """
    kinds, fields = strategy_of(job).of_some_grids, type(job).model_fields
    given = [tuple(key for key in keys if getattr(job, key) != fields[key].default) for keys in kinds]
    groups = [keys for keys in dict.fromkeys(given) if keys]
    seen: set[frozenset[str]] = set()
    for number in range(len(groups) + 1):
        for chosen in combinations(groups, number):
            without = dict.fromkeys(chain.from_iterable(chosen))
            if frozenset(without) not in seen:
                seen.add(frozenset(without))
                yield without_keys(job, without), {key: getattr(job, key) for key in without}


def without_keys(job: Job, keys: Iterable[str]) -> Job:
    """Return the job with the defaults of these keys."""
    fields = type(job).model_fields
    return job.model_copy(update={key: fields[key].default for key in keys})


def of_its_grid(job: Job) -> dict[str, Any]:
    """Return the keys of a job that some grids cannot have, where they are not the default."""
    fields = type(job).model_fields
    keys = dict.fromkeys(chain.from_iterable(strategy_of(job).of_some_grids))
    return {key: value for key in keys if (value := getattr(job, key)) != fields[key].default}


def said_of(keys: Mapping[str, Any]) -> str:
    """Say which keys were left out, with their values; nothing if none were.

    >>> said_of({"schedule": "zb_v", "stage_layers": (3, 1)})
    'without schedule: zb_v, stage_layers: [3, 1], which this grid cannot have'
    """
    if not keys:
        return ""
    said = ", ".join(f"{key}: {list(v) if isinstance(v, tuple | list) else v}" for key, v in keys.items())
    return f"without {said}, which this grid cannot have"
