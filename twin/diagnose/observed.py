"""What each rank of a run took, step by step: all that a diagnosis looks at.

A few numbers for a rank and a step, so that a running job can gather them from thousands of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin.compare.side import Side
from twin.description.grid import Axes, Axis
from twin.description.job import Job
from twin.description.problems import fail
from twin.engine.all_ranks import AllRanks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Observed:
    """Seconds; arrays are (steps, ranks) unless they say otherwise."""

    grid: Axes
    host_of_rank: Ints
    """(ranks,)"""
    host_names: tuple[str, ...]
    step_seconds: Floats
    """(steps,)"""
    compute: Floats
    """Sum of all compute ops."""
    transfer: Mapping[Axis, Floats]
    """Sum over an axis' collectives, from the arrival of the last member to the rank's own end."""
    loading: Floats | None = None
    """Reading the step's samples; None where it was not noted."""

    def __post_init__(self) -> None:
        shape = len(self.step_seconds), self.grid.ranks
        parts = [self.compute, *self.transfer.values()]
        parts += [] if self.loading is None else [self.loading]
        if any(part.shape != shape for part in parts) or len(self.host_of_rank) != self.grid.ranks:
            raise ValueError(f"observations of {shape[0]} steps of {shape[1]} ranks have other shapes")

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes with collectives."""
        return tuple(axis for axis in self.grid.axes if axis in self.transfer)

    def host_name(self, host: int) -> str:
        """Name a host as its user does, if no other has that name; else by its number."""
        names = self.host_names
        return names[host] if names and names.count(names[host]) == 1 else str(host)


def groups_of_ranks(grid: Axes, axis: Axis) -> Ints:
    """Number the group of every rank along an axis, (ranks,).

    >>> from twin.description.grid import Mesh
    >>> groups_of_ranks(Mesh(("data", "z", "x"), (1, 2, 2)), "z").tolist()
    [0, 1, 0, 1]
    """
    ranks = np.arange(grid.ranks).reshape(grid.sizes)
    first = np.broadcast_to(ranks.min(axis=grid.axes.index(axis), keepdims=True), grid.sizes).reshape(-1)
    return np.unique(first, return_inverse=True)[1].astype(np.int64)


def from_side(side: Side, job: Job) -> Observed:
    """Take the steps of a trace that was read and checked; raises DescriptionError if ranks are missing."""
    grid = job.concrete_grid
    if side.is_pipeline:
        remedy = "ranks of a pipeline do different work, which a diagnosis does not tell from slowness; look at the "
        raise fail(side.origin, f"{remedy}stages of `fourfold compare PREDICTED MEASURED`", str(grid))
    steps = side.steps
    if len(steps.ranks) != grid.ranks:
        raise fail(
            side.origin,
            f"has events of {len(steps.ranks):,} of the job's {grid.ranks:,} ranks; a diagnosis "
            "compares all ranks: trace them all (simulate --ranks 0,1,… does)",
        )
    compute = steps.columns("compute")
    along = {
        axis: np.array([c for c in steps.columns("collective") if steps.ops[c].axis == axis], dtype=np.int64)
        for axis in grid.axes
    }
    times = list(steps.times.values())
    hosts, names = hosts_of(side.manifest, job, side.origin)
    return Observed(
        grid,
        hosts,
        names,
        np.array([t.length_ns for t in times]) / 1e9,
        np.array([(t.end - t.start)[:, compute].sum(axis=1) for t in times]) / 1e9,
        {
            axis: np.array([(t.end - t.start)[:, columns].sum(axis=1) for t in times]) / 1e9
            for axis, columns in along.items()
            if len(columns)
        },
        _loading(side.manifest, list(steps.times), grid.ranks, side.origin),
    )


def from_simulation(steps: list[AllRanks]) -> Observed:
    """Take simulated steps of one job, all ranks of each."""
    job = steps[0].job
    grid = job.concrete_grid

    def flat(array: Floats) -> Floats:
        return np.ascontiguousarray(np.broadcast_to(array, grid.sizes)).reshape(-1)

    axes = [axis for axis in grid.axes if axis in steps[0].outcome.transfer]
    return Observed(
        grid,
        nodes_of(job),
        (),
        np.array([step.step_seconds for step in steps]),
        np.array([flat(step.outcome.compute) for step in steps]),
        {axis: np.array([flat(step.outcome.transfer[axis]) for step in steps]) for axis in axes},
    )


def nodes_of(job: Job) -> Ints:
    """The node of every rank as the twin places them, (ranks,)."""
    return np.arange(job.ranks, dtype=np.int64) // job.machine.devices_per_node


def hosts_of(manifest: Mapping[str, Any], job: Job, origin: str) -> tuple[Ints, tuple[str, ...]]:
    """Read which host each rank was on, and their names; as the twin places them if it is not said."""
    said = manifest.get("hosts")
    if said is None:
        return nodes_of(job), ()
    names, of_rank = (said.get(k, []) for k in ("names", "of_rank")) if isinstance(said, dict) else ([], [])
    whole = _list_of(names, str) and _list_of(of_rank, int) and len(of_rank) == job.ranks
    if not whole or not all(0 <= host < len(names) for host in of_rank):
        raise fail(f"{origin}: hosts", f"expected names, and the number of one for each of {job.ranks} ranks")
    return np.array(of_rank, dtype=np.int64), tuple(names)


def _loading(manifest: Mapping[str, Any], steps: list[int], ranks: int, origin: str) -> Floats | None:
    said = manifest.get("loading_ns")
    if said is None:
        return None
    rows = [said.get(str(step), []) for step in steps] if isinstance(said, dict) else [[]]
    if not all(_list_of(row, int) and len(row) == ranks and min(row) >= 0 for row in rows):
        raise fail(f"{origin}: loading_ns", f"expected for each step {ranks} whole numbers of nanoseconds")
    return np.array(rows, dtype=np.float64) / 1e9


def _list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)
