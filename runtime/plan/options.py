"""What training takes of a job besides its `train:` part: where paths start from, and what `auto` became."""

from __future__ import annotations

from pathlib import Path

from twin.description import huggingface
from twin.description.job import Job
from twin.description.train import PATHS, STANDARD_LIBRARY, Train


def settled(job: Job) -> tuple[str, str]:
    """Write what was `auto` in a job as overrides, for ranks that read the same file again."""
    sizes = ", ".join(f"{axis}: {size}" for axis, size in job.concrete_grid.model_dump().items())
    return f"grid={{{sizes}}}", f"batch.micro_sequences={job.concrete_micro_sequences}"


def located(train: Train, folder: Path = Path()) -> Train:
    """Let relative paths start from `folder`, the job file's."""
    changes = {
        key: _located(value, folder) for key in PATHS if (value := getattr(train, key)) and value != STANDARD_LIBRARY
    }
    return train.model_copy(update=changes)


def _located(value: str, folder: Path) -> str:
    if huggingface.is_directory_of(value):
        return f"{huggingface.PREFIX}{huggingface.located(value, folder)}"
    return str(folder / value)
