"""Tensor, pipeline, context and data parallelism as a strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from twin.description.grid import Mesh, factorizations
from twin.description.problems import Problem
from twin.schedule.communicator import Communicator, Role
from twin.schedule.ops import Schedule
from twin.strategies.megatron import groups
from twin.strategies.megatron import job as rules
from twin.strategies.megatron.grid import Grid
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.memory import memory_by_category
from twin.strategies.megatron.step import generate
from twin.strategies.strategy import Strategy


class Megatron(Strategy[MegatronJob]):
    """Layers are cut over tensor ranks, the model over the ranks of a pipeline, sequences over context ranks."""

    name = "megatron"
    options = MegatronJob
    grid = Grid

    def check(self, job: MegatronJob) -> list[Problem]:
        """Return what does not go together."""
        return rules.check(job)

    def mesh(self, job: MegatronJob) -> Mesh:
        """Return the axes in the order of ranks."""
        return job.mesh

    def communicators(self, job: MegatronJob) -> tuple[Communicator, ...]:
        """Those of axes, of neighbouring stages, and of the pipeline's ends."""
        return groups.communicators(job)

    def roles(self, job: MegatronJob) -> tuple[Role, ...]:
        """One for each rank of the pipeline."""
        return groups.roles(job)

    def schedule(self, job: MegatronJob, role: Role) -> Schedule:
        """Write the program of one stage's ranks."""
        return generate(job, _number(role))

    def memory(self, job: MegatronJob, role: Role) -> Mapping[str, float]:
        """Count what a rank of a stage holds."""
        return memory_by_category(job, _number(role))

    def candidates(self, job: MegatronJob) -> Iterator[Grid]:
        """Yield every way to cut the ranks."""
        for sizes in factorizations(job.ranks, len(self.axes)):
            yield Grid(**dict(zip(self.axes, sizes, strict=True)))


def _number(role: Role) -> int:
    """Place of a role in the pipeline."""
    return int(role.name.removeprefix("stage"))
