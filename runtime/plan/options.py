"""What training takes of a job besides its `train:` part: where paths start from, and what `auto` became."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from twin.description import huggingface
from twin.description.job import Job
from twin.description.train import Train, with_paths
from twin.strategies import of_its_grid


def settled(job: Job, left_out: Iterable[str] = ()) -> tuple[str, ...]:
    """Write what was `auto` in a job as overrides for ranks that read the file again, and what its grid wants with it.

    `left_out` are keys that the file may have and the job has not.
    """
    sizes = ", ".join(f"{axis}: {size}" for axis, size in job.concrete_grid.model_dump().items())
    others = {key: getattr(job, key) for key in left_out} | of_its_grid(job)
    written = (f"{key}={json.dumps(value)}" for key, value in others.items())
    return f"grid={{{sizes}}}", f"batch.micro_sequences={job.concrete_micro_sequences}", *written


def located(train: Train, folder: Path = Path()) -> Train:
    """Let relative paths start from `folder`, the job file's."""
    return with_paths(train, lambda value: _located(value, folder))


def _located(value: str, folder: Path) -> str:
    if huggingface.is_directory_of(value):
        return f"{huggingface.PREFIX}{huggingface.located(value, folder)}"
    return str(folder / value)
