"""Weights cut over data and context ranks, as PyTorch's `fully_shard` does it below tensor and pipeline parallelism.

A unit is a block, the tables of tokens and positions, or the last norm together with the head. Without a pipeline each
pass gathers them one ahead, and each micro-step's backward pass scatters gradients unit by unit. With one
`torch.distributed.pipelining` says when: UNSHARD starts the gathers of all units of a stage, and the stage's next pass
waits for all; under GPipe and 1F1B, which have no UNSHARD, the first pass gathers one ahead, and weights stay.
Gradients are summed whole, and leave where REDUCE_GRAD calls the post-backward hooks of all units, in the order of the
forward pass, and waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies.megatron.bodies import HEAD, TABLE, Hooks
from twin.strategies.megatron.groups import REPLICATE, gather, scatter
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.local import padded
from twin.strategies.megatron.orders import Action
from twin.strategies.megatron.place import Stage
from twin.strategies.megatron.reduction import Parameters
from twin.strategies.sizes import accumulated_bytes


@dataclass(frozen=True)
class Units:
    """What of a stage travels together: parts and their elements, in the order of the forward pass."""

    parameters: Parameters
    stage: Stage

    @cached_property
    def elements(self) -> dict[int, int]:
        """Elements of a tensor rank by part, padding included: TABLE, numbers of blocks, HEAD."""
        return self._elements(self.parameters.job.weight_parts)

    @cached_property
    def unpadded(self) -> dict[int, int]:
        """The same without padding."""
        return self._elements(1)

    def _elements(self, parts: int) -> dict[int, int]:
        local, stage = self.parameters.local, self.stage
        block = padded(local.block_shapes, parts)
        first = {TABLE: padded(local.table_shapes, parts)} if stage.first else {}
        last = {HEAD: padded(local.head_shapes, parts)} if stage.last else {}
        return {**first, **dict.fromkeys(stage.layers, block), **last}

    @property
    def largest(self) -> int:
        """Elements of the largest."""
        return max(self.elements.values(), default=0)


def under(root: Emitter, part: int) -> Emitter:
    """Return where a unit's ops stand in a pass."""
    if part >= 0:
        return root.under(f"block{part}", layer=part)
    return root.under("embedding" if part == TABLE else "head")


@dataclass
class Gathered(Hooks):
    """The gathers of one pass: a unit is waited for where it is used, and the next one asked for then."""

    job: MegatronJob
    units: Units
    backward: bool
    _root: Emitter | None = None
    _started: list[str] = field(default_factory=list)
    _used: int = 0

    @cached_property
    def order(self) -> list[int]:
        """Units in the order of the pass; the last one stays from its forward pass to its backward pass."""
        parts = list(self.units.elements)
        return [part for part in reversed(parts) if part != HEAD] if self.backward else parts

    def open(self, emit: Emitter) -> None:
        """Start the first gather."""
        self._root = emit
        self._start_until(1)

    def before(self, emit: Emitter, part: int) -> None:
        """Wait for a unit, take it apart, for it comes rank by rank, and ask for the next one."""
        del emit
        if self._used == len(self.order) or part != self.order[self._used]:
            return
        assert self._root is not None
        _take_apart(self._root, self.job, self.units, part, self._started[self._used])
        self._used += 1
        self._start_until(self._used + 1)  # whose gather waits for the copy

    def _start_until(self, end: int) -> None:
        assert self._root is not None
        for part in self.order[len(self._started) : end]:
            self._started.append(_start_gather(self._root, self.job, self.units, part))


@dataclass
class Unsharded:
    """All units of a stage on their way at once, between an UNSHARD and the stage's next pass."""

    job: MegatronJob
    units: Units
    root: Emitter
    _started: dict[int, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start all gathers, one behind the other."""
        for part in self.units.elements:
            self._started[part] = _start_gather(self.root, self.job, self.units, part)

    def wait(self) -> None:
        """Wait for each unit and take it apart."""
        for part, name in self._started.items():
            _take_apart(self.root, self.job, self.units, part, name)


def _start_gather(root: Emitter, job: MegatronJob, units: Units, part: int) -> str:
    """Start the gather of a unit; returns its name."""
    size = float(units.elements[part] * job.element_bytes)
    return under(root, part).under("weights").start("all_gather", gather(job), size)


def _take_apart(root: Emitter, job: MegatronJob, units: Units, part: int, name: str) -> None:
    """Wait for a unit, which comes rank by rank, and put each of its weights together."""
    here = under(root, part).under("weights")
    here.wait(name)
    here.compute("copy_out", Memory(2.0 * units.elements[part] * job.element_bytes, work="copy"))


@dataclass
class Scattered(Hooks):
    """Gradients on their way to the ranks that keep them: before a unit is packed, the one before has arrived."""

    job: MegatronJob
    units: Units
    first: bool
    """The step's first reduction: sums are written, not added to."""
    summed: bool = False
    """Gradients were summed whole over several micro-steps before."""
    _root: Emitter | None = None
    _flight: tuple[Emitter, str, int] | None = None
    _summed: list[tuple[Emitter, str, int]] = field(default_factory=list)

    def open(self, emit: Emitter) -> None:
        """Note where the pass begins."""
        self._root = emit

    def after(self, emit: Emitter, part: int) -> None:
        """Send a unit's gradients."""
        del emit
        self._send(part)

    def end(self, emit: Emitter) -> None:
        """Wait for everything."""
        del emit
        self._arrive()
        self._finish()

    def _finish(self) -> None:
        """Add what replicas have summed to what was there."""
        for here, name, elements in self._summed:
            here.wait(name)
            self._add(here, elements)
        self._summed.clear()

    def everything(self, emit: Emitter) -> None:
        """Send all units' gradients one after the other, in the order of modules, and wait."""
        self.open(emit)
        for part in self.units.elements:
            self._send(part)
        self.end(emit)

    def _send(self, part: int) -> None:
        self._arrive()
        assert self._root is not None
        here, elements = under(self._root, part).under("gradients"), self.units.elements[part]
        wide = self.job.main_gradient_bytes
        there = wide if self.summed else self.job.element_bytes
        here.compute("pack", Memory(float(self.units.unpadded[part] * there + elements * wide), work="accumulate"))
        name = here.start("reduce_scatter", scatter(self.job), float(elements * wide))
        self._flight = (here, name, -(-elements // self.job.weight_parts))
        if self.job.machine.device.type == "cpu":  # it goes on beside a stream, which CPUs have none of
            self._arrive()
            self._finish()

    def _arrive(self) -> None:
        """Take in the part that came, and sum it over replicas, if there are any."""
        if self._flight is None:
            return
        here, name, elements = self._flight
        self._flight = None
        here.wait(name)
        wide = self.job.main_gradient_bytes
        if self.units.parameters.sharers > self.job.weight_parts:  # summed before it is added to what was there
            self._summed.append((here, here.start("all_reduce", REPLICATE, float(elements * wide)), elements))
        else:
            self._add(here, elements)

    def _add(self, here: Emitter, elements: int) -> None:
        moved = accumulated_bytes(elements, self.job.main_gradient_bytes, first=self.first)
        here.compute("accumulate", Memory(moved, work="accumulate"))


@dataclass(frozen=True)
class Several(Hooks):
    """Hooks one after the other."""

    parts: Sequence[Hooks]

    def open(self, emit: Emitter) -> None:
        """Tell all."""
        for part in self.parts:
            part.open(emit)

    def before(self, emit: Emitter, part: int) -> None:
        """Tell all."""
        for one in self.parts:
            one.before(emit, part)

    def after(self, emit: Emitter, part: int) -> None:
        """Tell all."""
        for one in self.parts:
            one.after(emit, part)

    def end(self, emit: Emitter) -> None:
        """Tell all."""
        for part in self.parts:
            part.end(emit)


@dataclass(frozen=True)
class Sharding:
    """What happens to weights and gradients beside a rank's actions."""

    parameters: Parameters
    begins: Sequence[Action]
    """The first forward pass of each chunk that gathers its weights."""
    _asked: Counter[int] = field(default_factory=Counter)
    """How often each chunk was gathered by UNSHARD."""
    _coming: dict[int, Unsharded] = field(default_factory=dict)
    """Of each chunk that is, and has not computed since."""

    def unshard(self, emit: Emitter, stage: Stage) -> None:
        """Start the gathers of all units of a stage."""
        again = f"_again{self._asked[stage.chunk]}" if self._asked[stage.chunk] else ""
        self._asked[stage.chunk] += 1
        root = emit.under(f"stage{stage.number}{again}")
        coming = Unsharded(self.parameters.job, Units(self.parameters, stage), root)
        coming.start()
        self._coming[stage.chunk] = coming

    def unsharded(self, stage: Stage) -> None:
        """Wait for them."""
        self._coming.pop(stage.chunk).wait()

    def alone(self, action: Action) -> bool:
        """Tell whether what happens beside an action is not what happens beside others of its kind."""
        job = self.parameters.job
        return action in self.begins and not (job.reshards or job.reduces_each)

    def hooks(self, action: Action, stage: Stage, *, first: bool) -> Hooks:
        """Return what happens beside an action."""
        job, units = self.parameters.job, Units(self.parameters, stage)
        found: list[Hooks] = []
        # without a pipeline each micro-step's backward pass ends with weights dropped
        if job.reshards or action in self.begins or (job.reduces_each and action.kind == "F"):
            found.append(Gathered(job, units, backward=action.kind != "F"))
        if action.kind != "F" and job.reduces_each:
            found.append(Scattered(job, units, first=first))
        return Several(found)

    def reduce(self, emit: Emitter, stage: Stage) -> None:
        """Send a stage's gradients."""
        job = self.parameters.job
        scattered = Scattered(job, Units(self.parameters, stage), first=True, summed=True)
        scattered.everything(emit.under(f"stage{stage.number}", phase="reduce"))
