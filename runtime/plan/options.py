"""What training takes of a job besides its `train:` part: where paths start from, and what `auto` became."""

from __future__ import annotations

from pathlib import Path

from twin.description import huggingface
from twin.description.job import Job
from twin.description.train import Train, with_paths


def settled(job: Job) -> tuple[str, str]:
    """Write what was `auto` in a job as overrides, for ranks that read the same file again."""
    sizes = ", ".join(f"{axis}: {size}" for axis, size in job.concrete_grid.model_dump().items())
    return f"grid={{{sizes}}}", f"batch.micro_sequences={job.concrete_micro_sequences}"


def located(train: Train, folder: Path = Path()) -> Train:
    """Let relative paths start from `folder`, the job file's."""
    return with_paths(train, lambda value: _located(value, folder))


def _located(value: str, folder: Path) -> str:
    if huggingface.is_directory_of(value):
        return f"{huggingface.PREFIX}{huggingface.located(value, folder)}"
    return str(folder / value)
