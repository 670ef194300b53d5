"""`--strategy`: a job file under another strategy than its own, as the runtime trains it.

`fourfold train` and `record` ask here, and so does the twin's command line (by the entry point `fourfold.trained`):
what is predicted for `--strategy NAME` is the job that is trained for it, with the same keys, chosen among the same
grids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.strategies import names as trained
from runtime.strategies import trained_with
from runtime.train.choice import Open, Search, refusal
from twin.description.job import AUTO, DEFAULT_STRATEGY, Job
from twin.description.strict_yaml import read_yaml
from twin.strategies import load_job, names


def needed(file: Path, strategy: str | None) -> list[str]:
    """Say what jobs of a strategy need to be trained, where it is not the file's own, whose keys stand."""
    if strategy in (None, AUTO) or strategy not in names():
        return []
    if strategy == read_yaml(file).get("strategy", DEFAULT_STRATEGY):
        return []
    return [f"{key}={value}" for key, value in trained_with(strategy).items()] if strategy in trained() else []


def job_under(
    file: Path, overrides: Sequence[str], strategy: str, search: Search
) -> tuple[Job, Callable[[Job], str] | None, str]:
    """Return the job that `fourfold train --strategy` runs; it may leave its grid open.

    With it come what says why the runtime does not train such a job, by which grids are left out (None of a strategy
    that is simulated only), and what was compared, if `strategy` is `auto`. Raises DescriptionError for bad input.
    """
    given = [*needed(file, strategy), *overrides]
    described = load_job(file, given, strategy=strategy)
    if described.strategy == AUTO:
        left_open = Open(file, tuple(given), described.ranks, search)
        chosen = left_open.chosen()
        return left_open.job(chosen), refusal, chosen.words
    return described, refusal if described.strategy in trained() else None, ""


def cut(job: Job) -> str:
    """Say how a settled job is cut, where it may have left that open."""
    micro = job.concrete_micro_sequences
    return f"{job.concrete_grid}, {micro} sequence{'s' if micro > 1 else ''} at a time"
