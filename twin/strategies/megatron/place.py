"""Where the stages of a model are, and the messages that pass between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.orders import V_SHAPES, Action, Operation, operations, order, stage_of
from twin.strategies.megatron.orders import Name as Order

Neighbour = Literal["even", "odd", "wrap"]
Place = tuple[int, int]
"""Pipeline rank and chunk."""


@dataclass(frozen=True, eq=False)
class Message:
    """What one stage sends to the next one, or back, of each micro-batch."""

    forward: bool
    """An activation; else a gradient."""
    sender: Place
    receiver: Place
    communicator: str

    @property
    def peers(self) -> frozenset[int]:
        """The two pipeline ranks."""
        return frozenset((self.sender[0], self.receiver[0]))


@dataclass(frozen=True)
class Stage:
    """A chunk of a pipeline rank."""

    rank: int
    chunk: int
    number: int
    """Of the model's stages, from 0."""
    layers: range
    first: bool
    """Whether it has the embedding."""
    last: bool
    """Whether it has the head."""


@dataclass(frozen=True)
class Pipeline:
    """Stages and messages of a job."""

    job: MegatronJob
    _stages: dict[int, tuple[Stage, ...]] = field(default_factory=dict)

    @cached_property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return self.job.concrete_grid.pipeline

    @cached_property
    def order(self) -> Order:
        """The order of micro-batches."""
        return self.job.order

    @cached_property
    def _layers(self) -> tuple[range, ...]:
        return self.job.layers_by_stage

    @cached_property
    def chunks(self) -> int:
        """Stages of a rank."""
        return 2 if self.order == "dualpipe" else self.job.chunks

    def stage(self, rank: int, chunk: int) -> Stage:
        """Return a chunk of a rank."""
        number = stage_of(self.order, rank, chunk, self.ranks, self.job.chunks)
        layers = self._layers
        return Stage(rank, chunk, number, layers[number], number == 0, number == len(layers) - 1)

    def stages(self, rank: int) -> tuple[Stage, ...]:
        """Return all chunks of a rank."""
        if rank not in self._stages:
            self._stages[rank] = tuple(self.stage(rank, chunk) for chunk in range(self.chunks))
        return self._stages[rank]

    def actions(self, rank: int) -> tuple[Action, ...]:
        """Return what a rank does, in order."""
        return order(self.order, rank, self.ranks, self.job.micro_steps, self.job.chunks, self.job.group)

    def operations(self, rank: int) -> tuple[Operation, ...]:
        """Return what a rank of PyTorch's pipelining does, with all starts and waits, in order."""
        return operations(self.order, rank, self.ranks, self.job.micro_steps, self.job.chunks, self.job.group)

    @cached_property
    def _places(self) -> dict[tuple[int, int], Place]:
        """Where each stage is; of DualPipe in each of its directions."""
        both = self.order == "dualpipe"
        return {
            (stage_of(self.order, rank, chunk, self.ranks, self.job.chunks), chunk if both else 0): (rank, chunk)
            for rank in range(self.ranks)
            for chunk in range(self.chunks)
        }

    def outgoing(self, rank: int, chunk: int, *, forward: bool) -> Message | None:
        """Return what passes of a chunk give to another rank."""
        return self._message((rank, chunk), forward=forward, leaves=True)

    def incoming(self, rank: int, chunk: int, *, forward: bool) -> Message | None:
        """Return what passes of a chunk need of another rank."""
        return self._message((rank, chunk), forward=forward, leaves=False)

    def _message(self, here: Place, *, forward: bool, leaves: bool) -> Message | None:
        direction = here[1] if self.order == "dualpipe" else 0
        own = stage_of(self.order, *here, self.ranks, self.job.chunks)
        there = self._places.get((own + (1 if forward == leaves else -1), direction))
        if there is None or there[0] == here[0]:
            return None
        sender, receiver = (here, there) if leaves else (there, here)
        communicator = f"{_stream(self.job, forward, sender[1])}_{self._neighbour(sender[0], receiver[0], forward)}"
        return Message(forward, sender, receiver, communicator)

    def _neighbour(self, sender: int, receiver: int, forward: bool) -> Neighbour:
        """Say which pair it is; against the usual way only the last rank and the first go on with the next chunk."""
        if not _both_ways(self.job) and (sender > receiver) == forward:
            return "wrap"
        return "odd" if min(sender, receiver) % 2 else "even"


def streams(job: MegatronJob) -> tuple[str, ...]:
    """Names of the streams of messages: forward and backward, and of each chunk where chunks go opposite ways."""
    ways = range(2) if _both_ways(job) else range(1)
    return tuple(dict.fromkeys(_stream(job, forward, way) for forward in (True, False) for way in ways))


def _both_ways(job: MegatronJob) -> bool:
    return job.schedule in V_SHAPES or job.schedule == "dualpipe"


def _stream(job: MegatronJob, forward: bool, chunk: int) -> str:
    kind = "activations" if forward else "gradients"
    return f"pipeline_{kind}{chunk}" if _both_ways(job) else f"pipeline_{kind}"
