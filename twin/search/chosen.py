"""The winner of a search over strategies as overrides of the job file that was searched.

Whoever trains reads the same file again, on every rank; what is handed on is data, not a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from twin.search.across import Across
from twin.search.best import Given, job_mapping
from twin.strategies import Chosen, under

APART = ("strategy", "grid", "batch", "ranks")
"""Keys that are written whatever the file has, or that the search leaves as they are."""


def chosen(given: Given, found: Across, words: str = "", keys: Mapping[str, Any] = MappingProxyType({})) -> Chosen:
    """Return what `twin.strategies.load_job` makes the winner of the given file, under the winner's strategy.

    `keys` are what that strategy was opened with where the file does not say it.
    """
    winner = found.best.best.job
    before, after = under(given.absolute, winner.strategy), {**keys, **job_mapping(given, winner)}
    overrides = [
        f"strategy={winner.strategy}",
        f"grid={_flow(winner.concrete_grid.by_axis())}",
        f"batch.micro_sequences={winner.concrete_micro_sequences}",
        *(
            f"{key}={_flow(value)}"
            for key, value in after.items()
            if key not in APART and (key not in before or before[key] != value)
        ),
    ]
    return Chosen(winner.strategy, tuple(overrides), winner.ranks, words)


def _flow(value: Any) -> str:
    """Write a value in one line, as `--set` takes it."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.strip().removesuffix("...").strip()
