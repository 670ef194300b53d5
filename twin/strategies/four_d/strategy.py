"""AxoNN's 4D algorithm as a strategy: data × z × y × x (arXiv 2502.08145)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from typing import Any

import numpy as np

from twin.description.grid import divisors
from twin.description.job import with_below
from twin.description.offload import Tier
from twin.description.problems import Problem
from twin.schedule.communicator import Communicator, Role
from twin.schedule.ops import Schedule, axis_of
from twin.strategies.four_d import floor, rules
from twin.strategies.four_d.communication_model import communication_seconds
from twin.strategies.four_d.grid import Grid, factorizations
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.memory import memory_by_category, tiers
from twin.strategies.four_d.options import VARIED, Options, may_keep, variants
from twin.strategies.four_d.rules import may_shard
from twin.strategies.four_d.step import generate
from twin.strategies.offload import streams
from twin.strategies.strategy import Strategy


class FourD(Strategy[FourDJob]):
    """Every rank of the grid runs the same program."""

    name = "four_d"
    options = FourDJob
    grid = Grid
    ordered_by = "published communication model"
    varied = VARIED

    @property
    def worth_varying(self) -> tuple[str, ...]:
        """Overlap is never slower than none, over data too, and what is cached was gathered in time or was not.

        Halves and the number of recomputed blocks are worth it on a grid that was found: floors hold too little of a
        step for so many candidates to be told apart in short time.
        """
        return ("recompute", "recompute_keeps", "sharding", "sharded_overlapped", "across_blocks")

    def check(self, job: FourDJob) -> list[Problem]:
        """Return the rules of the grid and of caching that a job breaks."""
        return rules.check(job)

    def communicators(self, job: FourDJob) -> tuple[Communicator, ...]:
        """One for each axis, two for z, and every rank's own for copies to its host."""
        mesh = self.mesh(job)
        along = tuple(Communicator.along(mesh, axis_of(name), name) for name in Grid.streams)
        alone = np.arange(job.ranks).reshape(job.ranks, 1)
        beyond = () if job.offload is None else streams(job.ranks)
        hosts = (Communicator.of("host", alone),) if job.recompute_inputs == "host" else ()
        return (*along, *hosts, *beyond)

    def tiers(self, job: FourDJob, role: Role) -> Mapping[Tier, Mapping[str, float]]:
        """Count what a rank holds beyond its device."""
        del role
        return tiers(job)

    def schedule(self, job: FourDJob, role: Role) -> Schedule:
        """Write the step of sections 3 to 5 of the algorithm."""
        del role  # there is one
        return generate(job)

    def memory(self, job: FourDJob, role: Role) -> Mapping[str, float]:
        """Count weights, gradients, optimizer, activations, gathered weights and buffers."""
        del role
        return memory_by_category(job)

    def state_copies(self, job: FourDJob) -> int:
        """Replicas hold the same states, unless they divide them."""
        return 1 if job.data_reduction.sharded else job.concrete_grid.data

    def candidates(self, job: FourDJob) -> Iterator[Grid]:
        """Yield every factorization of the ranks."""
        return factorizations(job.ranks)

    def variant(self, job: FourDJob) -> Options:
        """Return the job's own options."""
        return Options.of(job)

    def variant_of(self, raw: Mapping[str, Any]) -> Options:
        """Read what a search wrote."""
        return Options.read(raw)

    def variants(self, job: FourDJob, over: frozenset[str]) -> Iterator[Options]:
        """Yield the options that make a difference on the job's grid."""
        return variants(job, over)

    def rehearsal(self, job: FourDJob) -> FourDJob | None:
        """Return a job of one block."""
        return floor.rehearsal(job)

    def same_rehearsal(self, job: FourDJob) -> tuple[object, ...]:
        """Blocks are alike for equal y, x and micro-batches."""
        return floor.same_rehearsal(job)

    def floor_seconds(self, job: FourDJob, seconds: Callable[[str], float]) -> float:
        """Multiply a block."""
        return floor.floor_seconds(job, seconds)

    def traffic(self, job: FourDJob) -> tuple[FourDJob, str, int]:
        """Return what one block moves."""
        return floor.traffic(job)

    def rank_key_seconds(self, job: FourDJob) -> float:
        """Return what the published communication model gives the grid."""
        return communication_seconds(job, job.concrete_grid)

    def advice(self, job: FourDJob) -> Iterator[tuple[str, FourDJob]]:
        """Yield less that recomputation keeps, then grids with more of data moved to z, which shards the weights."""
        if job.recompute:
            kinds = may_keep(job)
            for keeps in reversed(kinds[: kinds.index(job.recompute_keeps)] if job.recompute_keeps in kinds else ()):
                yield f"recompute_keeps: {keeps}", job.model_copy(update={"recompute_keeps": keeps})
        grid = job.concrete_grid
        for factor in divisors(grid.data)[1:]:
            sizes = {"z": grid.z * factor, "data": grid.data // factor}
            grown = job.model_copy(update={"grid": grid.model_copy(update=sizes)})
            yield f"z {sizes['z']} with data {sizes['data']}", grown

    def memory_variants(self, job: FourDJob) -> Iterator[tuple[str, FourDJob]]:
        """Yield sharded optimizer states, and all gathered weights kept."""
        if may_shard(job):
            yield "optimizer sharded over data", with_below(job, "data_reduction", {"mode": "sharded"})
        yield "all gathered layers cached", job.model_copy(update={"cache_gathered_layers": job.model.layers})

    def axis_choices(self, job: FourDJob) -> dict[str, list[int]]:
        """Return divisors of the ranks that divide the batch (data, z) or the model's widths (y, x)."""
        model, replicas = job.model, gcd(job.ranks, job.batch.sequences)
        widths = gcd(model.heads, model.key_value_heads, model.mlp_hidden)
        allowed = {"data": replicas, "z": replicas, "y": gcd(job.ranks, widths), "x": gcd(job.ranks, model.hidden)}
        return {axis: divisors(size) for axis, size in allowed.items()}

    def why_not(self, job: FourDJob) -> str:
        """Say how many devices are too few."""
        grid = job.concrete_grid
        return f"split the model over more than z·y·x = {grid.z * grid.y * grid.x} devices"
