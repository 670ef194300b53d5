"""Small jobs and machines that many tests share."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import tests.profiles  # noqa: F401 - the profiles are there before any test is read
from tests.limits import pytest_timeout_cancel_timer, pytest_timeout_set_timer
from tests.tiers import (
    _no_process_in_secret,
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
)
from twin.description.job import Job
from twin.strategies import load_job

__all__ = [
    "MakeJob",
    "_no_process_in_secret",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_timeout_cancel_timer",
    "pytest_timeout_set_timer",
]
MakeJob = Callable[..., Job]

TINY = {"layers": 2, "hidden": 1680, "heads": 840, "sequence": 64, "vocabulary": 1000}
"""Two blocks whose widths 1 to 8 divide, so that any small grid is possible."""


BLOCKED = signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""Signals that this process blocks of itself."""


@pytest.fixture(autouse=True)
def _signals_arrive() -> Iterator[None]:
    """Unblock what a command blocks that a test ran in this process: what later tests start would never hear it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Take back the threads that a command took that a test ran in this process: where processes share cores they
    spin, and a test of half a second took half a minute.
    """
    torch, wanted = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and wanted.isdecimal() and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(int(wanted))


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """Return the shape of the tiny model."""
    return dict(TINY)


@pytest.fixture(scope="session")
def make_job() -> MakeJob:
    """Build a job from a grid, a machine (name or mapping), and any keys of a job file.

    `per_rank` is how many sequences each (data, z) coordinate trains on in a step.
    """

    def make(
        grid: Mapping[str, int] | None = None,
        machine: str | Mapping[str, Any] = "perlmutter",
        *,
        model: Mapping[str, Any] | str | None = None,
        per_rank: int = 1,
        micro_sequences: int | str = 1,
        overrides: tuple[str, ...] = (),
        **options: Any,
    ) -> Job:
        sizes = {"data": 1, "z": 1, "y": 1, "x": 1, **(grid or {})}
        batch = per_rank * sizes["data"] * sizes["z"]
        described = {
            "model": TINY if model is None else model,
            "machine": machine,
            "ranks": sizes["data"] * sizes["z"] * sizes["y"] * sizes["x"],
            "grid": sizes,
            "batch": {"sequences": batch, "micro_sequences": micro_sequences},
            **options,
        }
        return load_job(described, overrides)

    return make
