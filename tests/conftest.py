"""Small jobs and machines that many tests share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from twin.description.job import Job
from twin.description.load import load_job

MakeJob = Callable[..., Job]
TESTS = Path(__file__).parent
OF_RANKS = {"recorder", "runtime", "testbed"}
"""Directories whose tests start ranks of their own, which keep both cores busy."""

TINY = {"layers": 2, "hidden": 1680, "heads": 840, "sequence": 64, "vocabulary": 1000}
"""Two blocks whose widths 1 to 8 divide, so that any small grid is possible."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share tests out to two processes: those that start ranks to one, and first; a file stays together.

    Two pools of ranks at once would wait for each other's cores, and time out.
    """
    for item in items:
        place = item.path.relative_to(TESTS).parts
        group = "ranks" if place[0] in OF_RANKS else "/".join(place)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in OF_RANKS)


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
