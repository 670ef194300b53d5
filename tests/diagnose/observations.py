"""Runs made up of numbers, with a fault or none: what a diagnosis is tried on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from twin.description.job import Job
from twin.diagnose.expected import Expected
from twin.diagnose.observed import Floats, Observed
from twin.strategies import load_job
from twin.strategies.four_d.grid import Axis, Grid

COMPUTE, TRANSFER, LOADING, STEP = 0.3, 0.2, 0.002, 0.8
MODEL = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 512}


def job_on(grid: Grid, machine: Any = "frontier") -> Job:
    """A small job on a grid."""
    sequences = 8 * grid.data * grid.z
    return load_job(
        {
            "model": MODEL,
            "machine": machine,
            "ranks": grid.ranks,
            "grid": grid.model_dump(),
            "batch": {"sequences": sequences, "micro_sequences": 8},
        }
    )


@cache
def members(grid: Grid, rank: int, axis: Axis) -> list[int]:
    """Ranks that differ from one in this axis only, by trying all."""
    at = grid.coordinates(rank)
    return [other for other in range(grid.ranks) if all(grid.coordinates(other)[a] == at[a] for a in at if a != axis)]


def healthy(grid: Grid, per_host: int, *, steps: int = 8, noise: float = 0.05, seed: int = 0) -> Observed:
    """All ranks alike but for noise; a collective takes the same on all of its members."""
    random = np.random.default_rng(seed)

    def around(middle: float) -> Floats:
        return middle * np.exp(noise * random.standard_normal((steps, grid.ranks)))

    transfer: dict[Axis, Floats] = {}
    for axis in ("data", "z", "y", "x"):
        if grid.size(axis) > 1:
            own = around(TRANSFER)
            transfer[axis] = own[:, [min(members(grid, rank, axis)) for rank in range(grid.ranks)]]
    hosts = np.arange(grid.ranks, dtype=np.int64) // per_host
    return Observed(grid, hosts, (), around(STEP)[:, 0], around(COMPUTE), transfer, around(LOADING))


def with_slow_ranks(observed: Observed, ranks: Sequence[int], factor: float) -> Observed:
    """Let some ranks compute longer."""
    compute = observed.compute.copy()
    compute[:, list(ranks)] *= factor
    return replace(observed, compute=compute)


def with_slow_host_link(observed: Observed, host: int, factor: float) -> Observed:
    """Let all collectives take longer that cross the link of a host."""
    transfer = {axis: took.copy() for axis, took in observed.transfer.items()}
    for axis, took in transfer.items():
        for rank in range(observed.grid.ranks):
            hosts = set(observed.host_of_rank[members(observed.grid, rank, axis)].tolist())
            if host in hosts and len(hosts) > 1:
                took[:, rank] *= factor
    return replace(observed, transfer=transfer)


def expectation(observed: Observed) -> Expected:
    """What the healthy run takes without noise."""
    ranks = observed.grid.ranks
    return Expected(STEP, np.full(ranks, COMPUTE), {axis: np.full(ranks, TRANSFER) for axis in observed.transfer})
