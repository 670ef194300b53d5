"""FSDP2's reductions by the named collectives, and the way of what they bring into the store's sums.

FSDP2 hands a unit's gradients to a reduce-scatter, that one's result to an all-reduce where replicas have the same
shards (HSDP), and what comes of it to the hooks of its parameters; on a device all of that on streams of its own, for
which the compute stream waits where the next unit's gradients are packed. There they are added to the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter  # as AllGather: exported nowhere
from torch.distributed.tensor import DTensor

from runtime.parallel.collectives import Handle
from runtime.parallel.ops import Place
from runtime.sharded.context import ShardedContext
from runtime.sharded.gathers import Copies
from runtime.sharded.units import Unit
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase
from twin.strategies.sizes import accumulated_bytes


@dataclass
class Reduced:
    """A unit's gradients on their way."""

    place: Place
    count: int
    """Parameters that gradients are awaited of."""
    scattered: Handle | None = None
    summed: Handle | None = None
    shards: list[tuple[Parameter, torch.Tensor]] = field(default_factory=list)
    late: torch.Tensor | None = None
    """What is summed over replicas when the reduce-scatter has been waited for: only where nothing but names counts."""
    done: torch.Event | None = None
    """When the shards are there, on a device."""


@dataclass
class Reductions:
    """The reductions of one rank."""

    context: ShardedContext
    copies: Copies
    number: int = 0
    """Counts those of a micro-step."""
    phase: Phase = "bwd"
    """Whether reductions belong to a backward pass, or come behind all."""
    place_of: Callable[[Unit, int], Place] = lambda unit, number: unit.place.under(f"bucket{number}")
    """Where the ops of a unit's reduction, of such a number, stand."""
    _flight: list[Reduced] = field(default_factory=list)
    """Whose reduce-scatter the compute stream has not waited for."""
    _summing: list[Reduced] = field(default_factory=list)
    """Whose all-reduce it has not waited for."""

    def open(self, unit: Unit) -> None:
        """Begin with a unit, whose gradients are about to be packed."""
        self._settle()
        place = self.place_of(unit, self.number)
        self.number += 1
        self.copies.bucket, self.copies.packing = place, self.phase
        self._flight.append(Reduced(place, len(unit.members)))

    def scatter(self, output: torch.Tensor, packed: torch.Tensor) -> None:
        """Reduce what is packed; each rank keeps its part."""
        context, now = self.context, self._flight[-1]
        now.scattered = context.collectives.reduce_scatter(
            now.place, context.sharing.scatter, packed, into=output, phase=self.phase
        )
        self._go_on(now.scattered)

    def sum_over_replicas(self, part: torch.Tensor) -> None:
        """Sum a part over ranks that hold the same one, in place."""
        now = self._flight[-1]
        if not (self.context.initialised or self.context.waits_at_once):
            now.late = part  # a schedule has one stream that waits: what waits for a scatter comes after its wait
            return
        now.summed = self._all_reduce(now, part)
        self._go_on(now.summed)

    def _all_reduce(self, reduced: Reduced, part: torch.Tensor) -> Handle:
        context = self.context
        return context.collectives.all_reduce(reduced.place, context.sharing.replicate, part, phase=self.phase)

    def _go_on(self, handle: Handle) -> None:
        if self.context.waits_at_once:
            handle.wait()
        else:
            handle.arrive()  # FSDP2's own stream waits

    def arrived(self, parameter: Parameter, sharded: nn.Parameter) -> None:
        """Take a shard's gradient: what FSDP2 calls for each parameter of a unit."""
        assert isinstance(sharded.grad, DTensor)
        now = self._flight[-1]
        now.shards.append((parameter, sharded.grad.to_local().reshape(-1)))
        sharded.grad = None
        if len(now.shards) < now.count:
            return
        if self.context.waits_at_once:
            self._flight.pop()
            self._add(now)
        elif self.context.device.type != "cpu":
            now.done = torch.Event(self.context.device)
            now.done.record()

    def _settle(self) -> None:
        """Wait for reduce-scatters, and go on with what they bring."""
        for reduced in self._flight:
            assert reduced.scattered is not None
            reduced.scattered.wait()
            if reduced.late is not None:
                reduced.summed = self._all_reduce(reduced, reduced.late)
            if reduced.summed is not None:
                self._summing.append(reduced)
            else:
                self._add(reduced)
        self._flight.clear()

    def end(self) -> None:
        """Wait for everything: a micro-step's backward pass is over."""
        self._settle()
        for reduced in self._summing:
            assert reduced.summed is not None
            reduced.summed.wait()
            self._add(reduced)
        self._summing.clear()
        self.number = 0

    def _add(self, reduced: Reduced) -> None:
        """Add shards to their sums."""
        if reduced.done is not None:
            reduced.done.wait()
        context = self.context
        stored = sum(parameter.shard.stored for parameter, _ in reduced.shards)
        first = not reduced.shards[0][0].seen
        moved = accumulated_bytes(stored, context.reduce_type.itemsize, first=first)
        context.ops.compute(
            reduced.place,
            "accumulate",
            partial(_added, reduced.shards),
            lambda: Memory(moved, work="accumulate"),
            phase=self.phase,
        )

    def finish(self) -> None:
        """Sum the loss over all ranks: gradients are complete already."""
        context = self.context
        for communicator in context.mesh.of_replicas:
            loss = context.store.loss
            context.collectives.all_reduce(Place(""), communicator, loss, name="loss", phase="reduce").wait()


def _added(shards: Sequence[tuple[Parameter, torch.Tensor]]) -> None:
    for parameter, shard in shards:
        parameter.accumulate(shard)


class Scatter(ReduceScatter):
    """The reduce-scatters of one unit."""

    def __init__(self, reductions: Reductions, unit: Unit) -> None:
        self.reductions, self.unit, self._packs = reductions, unit, False

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Make memory: first for what is packed, then for what is kept of the sum."""
        if not self._packs:
            self.reductions.open(self.unit)
            self._packs = True
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Reduce; the loss is scaled once by the count of all targets, so that everywhere is a sum."""
        del group, op, async_op
        self._packs = False
        self.reductions.scatter(output_tensor, input_tensor)
