"""A running job looked at again and again: the first healthy look is what later ones are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from twin.description.job import Job
from twin.diagnose.diagnose import diagnose, expectation
from twin.diagnose.expected import Expected
from twin.diagnose.observed import Observed, hosts_of
from twin.diagnose.probe import read_probe


class Watcher:
    """Keeps what the twin expects, and the reference; none while steps are far too long by a calibrated twin."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._expected: Expected | None = None
        self._reference: Observed | None = None

    def __call__(self, window: Mapping[str, Any]) -> dict[str, Any]:
        """Diagnose what the runtime gathered of a few steps (`runtime.watch`); plain values."""
        observed = observed_window(window, self._job)
        if self._expected is None:
            self._expected = expectation(self._job)
        hosts = int(observed.host_of_rank.max()) + 1
        found = diagnose(observed, self._job, self._expected, read_probe(window, hosts, "window"), self._reference)
        if found.healthy and self._reference is None:
            self._reference = observed
        job = self._job.model_dump(mode="json", by_alias=True)
        return {**found.as_json(), "job": job, "figures": figures_of(observed, window)}


def observed_window(window: Mapping[str, Any], job: Job) -> Observed:
    """Read a window; its arrays are lists (steps, ranks)."""
    hosts, names = hosts_of(window, job, "window")
    return Observed(
        job.concrete_grid,
        hosts,
        names,
        np.array(window["step_seconds"]),
        np.array(window["compute"]),
        {axis: np.array(window["transfer"][axis]) for axis in job.concrete_grid.axes if axis in window["transfer"]},
        np.array(window["loading"]),
    )


def figures_of(observed: Observed, window: Mapping[str, Any]) -> dict[str, list[float]]:
    """A number for each rank, seconds a step, under the names that the dashboard's rank map knows."""
    parts = {"compute_seconds": observed.compute}
    if observed.loading is not None:
        parts["loading_seconds"] = observed.loading
    for axis in observed.axes:
        parts[f"transfer_{axis}_seconds"] = observed.transfer[axis]
        parts[f"peers_{axis}_seconds"] = np.array(window["waited"][axis])
    return {name: np.median(part, axis=0).round(9).tolist() for name, part in parts.items()}
