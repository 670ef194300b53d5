"""A toy strategy, defined outside the packages: two pipeline stages that send activations and gradients.

Stage 0 computes a half, sends it on; stage 1 receives, computes, sends the gradient back. Replicas of a stage
sum their gradients over `data`; experts trade tokens by an all-to-all; a copy of the weights goes to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np

from twin.description.grid import GridSpec
from twin.description.job import Job
from twin.description.model import Positive
from twin.description.problems import Problem
from twin.schedule.communicator import Communicator, Role
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.schedule.ops import Repeat, Schedule
from twin.strategies import Strategy

STAGES = 2
MESSAGE, GRADIENT, TRADED, COPIED = 8e6, 2e6, 4e6, 1e6
WORK = (3e8, 5e8)
"""Bytes that a micro-step of each stage moves through memory."""


class Grid(GridSpec):
    batch_axes: ClassVar[tuple[str, ...]] = ("data",)
    streams: ClassVar[tuple[str, ...]] = ("data",)

    stage: Positive = STAGES
    data: Positive = 1


class ToyJob(Job):
    strategy: Literal["toy"] = "toy"
    grid: Grid | Literal["auto"] = "auto"
    trade: bool = False
    copy_to_host: bool = False


class Toy(Strategy[ToyJob]):
    name = "toy"
    options = ToyJob
    grid = Grid

    def check(self, job: ToyJob) -> list[Problem]:
        if job.grid != "auto" and job.grid.stage != STAGES:
            return [Problem("grid.stage", f"must be {STAGES}", job.grid.stage)]
        return []

    def communicators(self, job: ToyJob) -> tuple[Communicator, ...]:
        half = job.ranks // STAGES
        pairs = np.stack([np.arange(half), np.arange(half, job.ranks)], axis=1)
        return (
            Communicator.along(self.mesh(job), "data"),
            Communicator.of("pipe_down", pairs),
            Communicator.of("pipe_up", pairs),
            Communicator.of("expert", np.arange(job.ranks).reshape(STAGES, half)),
            Communicator.of("host", np.arange(job.ranks).reshape(job.ranks, 1)),
        )

    def roles(self, job: ToyJob) -> tuple[Role, ...]:
        half = job.ranks // STAGES
        return tuple(Role(f"stage{s}", np.arange(s * half, (s + 1) * half)) for s in range(STAGES))

    def schedule(self, job: ToyJob, role: Role) -> Schedule:
        first = role.name == "stage0"
        body = Emitter("micro{micro}/", "fwd")
        if not first:
            body.collective("receive", "pipe_down", MESSAGE, "from_below")
        body.compute("forward", Memory(WORK[not first]))
        if job.trade:
            body.collective("all_to_all", "expert", TRADED, "dispatch")
        if first:
            body.collective("send", "pipe_down", MESSAGE, "to_above")
            body.collective("receive", "pipe_up", GRADIENT, "from_above")
        back = body.under("bwd", phase="bwd")
        back.compute("backward", Memory(2 * WORK[not first]))
        if not first:
            back.collective("send", "pipe_up", GRADIENT, "to_below")
        end = Emitter("", "reduce", ops=[Repeat("micro", tuple(range(job.micro_steps)), tuple(body.ops))])
        if job.concrete_grid.data > 1:
            end.collective("all_reduce", "data", GRADIENT)
        if job.copy_to_host:
            end.collective("to_host", "host", COPIED, "keep")
        return Schedule(tuple(end.ops))

    def memory(self, job: ToyJob, role: Role) -> Mapping[str, float]:
        del job
        return {"weights": 1e9 if role.name == "stage0" else 2e9}

    def candidates(self, job: ToyJob) -> Iterator[Grid]:
        yield Grid(stage=STAGES, data=job.ranks // STAGES)
