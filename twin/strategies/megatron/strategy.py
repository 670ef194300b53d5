"""Tensor, pipeline, context and data parallelism as a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from typing import Any

from twin.description.grid import Mesh, divisors, factorizations
from twin.description.problems import Problem
from twin.schedule.communicator import Communicator, Role
from twin.schedule.ops import Schedule
from twin.strategies.megatron import floor, groups, rules
from twin.strategies.megatron.grid import Grid
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.linear import TENSOR
from twin.strategies.megatron.memory import every_memory, memory_by_category
from twin.strategies.megatron.options import VARIED, Options, stage_layers, variants
from twin.strategies.megatron.step import generate
from twin.strategies.strategy import Strategy


class Megatron(Strategy[MegatronJob]):
    """Layers are cut over tensor ranks, the model over the ranks of a pipeline, sequences over context ranks."""

    name = "megatron"
    options = MegatronJob
    grid = Grid
    varied = VARIED
    of_some_grids = (("micro_group",), ("stage_layers",), ("weight_shards",), ("schedule", "chunks", "micro_group"))

    def check(self, job: MegatronJob) -> list[Problem]:
        """Return what does not go together."""
        return rules.check(job)

    def mesh(self, job: MegatronJob) -> Mesh:
        """Return the axes in the order of ranks."""
        return job.mesh

    def communicators(self, job: MegatronJob) -> tuple[Communicator, ...]:
        """Those of axes, of neighbouring stages, and of the pipeline's ends."""
        return groups.communicators(job)

    def issued_by(self, job: MegatronJob) -> dict[str, str]:
        """Of flavour torch: what tensor ranks share by DTensor, weights that are cut over data ranks by FSDP2."""
        if job.flavour != "torch":
            return {}
        return {TENSOR: "dtensor", groups.gather(job): "fsdp2", groups.scatter(job): "fsdp2"}

    def roles(self, job: MegatronJob) -> tuple[Role, ...]:
        """One for each rank of the pipeline."""
        return groups.roles(job)

    def schedule(self, job: MegatronJob, role: Role) -> Schedule:
        """Write the program of one stage's ranks."""
        return generate(job, _number(role))

    def memory(self, job: MegatronJob, role: Role) -> Mapping[str, float]:
        """Count what a rank of a stage holds."""
        return memory_by_category(job, _number(role))

    def memories(self, job: MegatronJob) -> list[dict[str, float]]:
        """Count what ranks of stages that differ hold."""
        return every_memory(job)

    def variant(self, job: MegatronJob) -> Options:
        """Return the job's own options."""
        return Options.of(job)

    def variant_of(self, raw: Mapping[str, Any]) -> Options:
        """Read what a search wrote."""
        return Options.read(raw)

    def variants(self, job: MegatronJob, over: frozenset[str]) -> Iterator[Options]:
        """Yield the options that make a difference on the job's grid."""
        return variants(job, over)

    def opened(self, job: MegatronJob) -> MegatronJob:
        """Let stages differ by a layer where the layers do not divide."""
        return job.model_copy(update={"stage_layers": stage_layers(job)})

    def state_copies(self, job: MegatronJob) -> int:
        """Data and context ranks hold the same states, unless they divide them; ranks of DualPipe in pairs."""
        sharers = job.concrete_grid.data * job.concrete_grid.context * (2 if job.order == "dualpipe" else 1)
        if job.flavour == "torch":
            return sharers // job.weight_parts
        return 1 if job.distributed_optimizer else sharers

    def rehearsal(self, job: MegatronJob) -> MegatronJob | None:
        """Return a job of one block."""
        return floor.rehearsal(job)

    def same_rehearsal(self, job: MegatronJob) -> tuple[object, ...]:
        """Blocks are alike for equal tensor and context ranks and micro-batches."""
        return floor.same_rehearsal(job)

    def floor_seconds(self, job: MegatronJob, seconds: Callable[[str], float]) -> float:
        """Fill the pipeline, do the rank's work, drain it."""
        return floor.floor_seconds(job, seconds)

    def closer_floor_seconds(
        self, job: MegatronJob, seconds: Callable[[str], float], hop_seconds: Callable[[], float]
    ) -> float:
        """Replay the schedule."""
        return floor.closer_floor_seconds(job, seconds, hop_seconds)

    def messages(self, job: MegatronJob) -> tuple[tuple[str, ...], float]:
        """Activations and their gradients between stages."""
        return floor.messages(job)

    def axis_choices(self, job: MegatronJob) -> dict[str, list[int]]:
        """Return divisors of the ranks that divide layers, batch, sequence and widths."""
        model = job.model
        allowed = {
            "pipeline": gcd(job.ranks, model.layers),
            "data": gcd(job.ranks, job.batch.sequences),
            "context": gcd(job.ranks, model.sequence // 2),
            "tensor": gcd(job.ranks, gcd(model.heads, model.mlp_hidden)),
        }
        return {axis: divisors(size) for axis, size in allowed.items()}

    def candidates(self, job: MegatronJob) -> Iterator[Grid]:
        """Yield every way to cut the ranks."""
        for sizes in factorizations(job.ranks, len(self.axes)):
            yield Grid(**dict(zip(self.axes, sizes, strict=True)))


def _number(role: Role) -> int:
    """Place of a role in the pipeline."""
    return int(role.name.removeprefix("stage"))
