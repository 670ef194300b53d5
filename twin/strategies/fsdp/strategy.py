"""Sharded data parallelism as a strategy: FSDP, HSDP and ZeRO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from twin.description.grid import factorizations
from twin.description.offload import Tier
from twin.description.problems import Problem
from twin.schedule.communicator import Communicator, Role
from twin.schedule.ops import Schedule
from twin.strategies.fsdp import groups
from twin.strategies.fsdp import job as rules
from twin.strategies.fsdp import options as varying
from twin.strategies.fsdp.job import FsdpJob, Grid
from twin.strategies.fsdp.memory import memory_by_category
from twin.strategies.fsdp.memory import tiers as beyond
from twin.strategies.fsdp.step import generate
from twin.strategies.strategy import Strategy


class Fsdp(Strategy[FsdpJob]):
    """Every rank runs the whole model and keeps a part of it."""

    name = "fsdp"
    options = FsdpJob
    grid = Grid
    varied = varying.VARIED

    def check(self, job: FsdpJob) -> list[Problem]:
        """Return what does not go together."""
        return rules.check(job)

    def communicators(self, job: FsdpJob) -> tuple[Communicator, ...]:
        """Those of each of the three cuts."""
        return groups.communicators(job, self.mesh(job))

    def issued_by(self, job: FsdpJob) -> dict[str, str]:
        """Weights and their gradients, by the hooks of the flavour."""
        names = groups.Groups.of(job)
        return dict.fromkeys((names.gather, names.scatter), job.flavour)

    def schedule(self, job: FsdpJob, role: Role) -> Schedule:
        """Write a step of the job's flavour."""
        del role  # there is one
        return generate(job)

    def memory(self, job: FsdpJob, role: Role) -> Mapping[str, float]:
        """Count what a rank holds."""
        del role
        return memory_by_category(job)

    def tiers(self, job: FsdpJob, role: Role) -> Mapping[Tier, Mapping[str, float]]:
        """Count what a rank holds beyond its device."""
        del role
        return beyond(job)

    def candidates(self, job: FsdpJob) -> Iterator[Grid]:
        """Yield every way to cut the ranks, layers only over ranks of a node.

        PyTorch's FSDP cuts weights, gradients and states alike, or over replicas.
        """
        if job.flavour == "deepspeed":
            node = job.machine.devices_per_node
            for *sizes, tensor in sorted(factorizations(job.ranks, len(self.axes)), key=itemgetter(-1)):
                if tensor == 1 or node % tensor == 0:
                    yield Grid(**dict(zip(self.axes, (*sizes, tensor), strict=True)))
            return
        for data, weights in factorizations(job.ranks, 2):
            if weights > 1 or job.ranks == 1:
                yield Grid(data=data, weights=weights)

    def axis_choices(self, job: FsdpJob) -> dict[str, list[int]]:
        """Leave out what the flavour and the model's heads do not allow of ranks that share layers."""
        found = super().axis_choices(job)
        shared = [size for size in found["tensor"] if not rules.check_tensor(job, Grid(tensor=size))]
        return {**found, "tensor": shared}

    def variant(self, job: FsdpJob) -> varying.Options:
        """Return what a job recomputes and keeps."""
        return varying.Options.of(job)

    def variant_of(self, raw: Mapping[str, Any]) -> varying.Options:
        """Read what `Variant.as_json` wrote."""
        return varying.Options.read(raw)

    def variants(self, job: FsdpJob, over: frozenset[str]) -> Iterator[varying.Options]:
        """Yield recomputation, and weights that stay gathered, on and off."""
        yield from varying.variants(job, over)
