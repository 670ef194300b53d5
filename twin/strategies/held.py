"""Optimizer states beyond the device where gradients stay on it until the update, as the runtime has it.

* Without a stride the host's cores update each sub-group: its gradients come down, its new weights go up, through
  pinned memory. While one is updated the next one's gradients come, and the last one's weights go.
* Of each `stride` sub-groups the last is updated on the device, whose states come through pinned memory while the one
  before it is updated, and go while the ones behind it are.
* Weights that lie beyond the device themselves are rounded where they lie if the host has updated them, and leave the
  device if that has. Where they are not rounded they are what is updated, and move with the states.

Sub-groups are cut from spans of elements with equal weight decay, each on its own. A CPU's memory is the host's:
nothing is copied there that a plain update would not move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twin.description.job import Job
from twin.description.offload import Offload, OptimizerOffload
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies.fetch import AHEAD, COMING, GOING
from twin.strategies.offload import CPU, DOWN, READ, UP, WRITE
from twin.strategies.sizes import ADAM_BYTES_PER_ELEMENT, FP32_BYTES, MOMENTS_BYTES
from twin.strategies.sub_groups import refuse_many

LANES = 2
"""Buffers on the device for sub-groups that it updates: what is worked on, and what comes or goes meanwhile."""
LANDINGS = 3
"""Buffers in the host's memory for what comes of sub-groups that it updates: one that is updated, one whose gradients
come, one whose weights go."""
LANE_ROWS = 3
"""Of a buffer: weights and both moments, each of fp32."""
ALIGNED = 1024
"""Elements of which sub-groups are multiples: kernels go through whole vectors, as they do over everything."""


@dataclass(frozen=True)
class HeldGroup:
    """Elements `begin` to `end` of a rank that are updated together."""

    number: int
    begin: int
    end: int
    on_device: bool

    @property
    def elements(self) -> int:
        """Their number."""
        return self.end - self.begin

    def within(self, away: range) -> int:
        """Count those that lie in a range."""
        return max(0, min(self.end, away.stop) - max(self.begin, away.start))


def held_size(offload: OptimizerOffload) -> int:
    """Return the elements of a sub-group that is not cut short by its span's end."""
    return max(ALIGNED, offload.sub_group_elements // ALIGNED * ALIGNED)


def held_groups(offload: OptimizerOffload, spans: Sequence[tuple[int, int]]) -> Iterator[HeldGroup]:
    """Cut spans into sub-groups; of each `stride` the last is updated on the device.

    >>> groups = held_groups(OptimizerOffload(stride=2, sub_group_elements=2000), [(0, 2500), (2500, 2600)])
    >>> [(group.begin, group.end, group.on_device) for group in groups]
    [(0, 1024, False), (1024, 2048, True), (2048, 2500, False), (2500, 2600, True)]
    """
    size = held_size(offload)
    bounds = [(first, min(first + size, end)) for begin, end in spans for first in range(begin, end, size)]
    for number, (begin, end) in enumerate(bounds):
        on_device = offload.stride is not None and (number + 1) % offload.stride == 0
        yield HeldGroup(number, begin, end, on_device)


@dataclass(frozen=True)
class HeldUpdate:
    """The update of a rank's elements."""

    job: Job
    offload: Offload
    rounds: bool
    """Layers compute with rounded copies of master weights, which then lie beyond the device too."""
    away: range = range(0)
    """Which elements' weights, as layers compute with them, lie beyond the device (`offload.parameters`)."""

    @property
    def optimizer(self) -> OptimizerOffload:
        """Where its states lie."""
        assert self.offload.optimizer is not None
        return self.offload.optimizer

    @property
    def states_bytes(self) -> int:
        """Of an element, beyond the device."""
        return MOMENTS_BYTES + (FP32_BYTES if self.rounds else 0)

    @property
    def weight_bytes(self) -> int:
        """Of an element as layers compute with it."""
        return self.job.element_bytes if self.rounds else FP32_BYTES

    def emit(self, emit: Emitter, spans: Sequence[tuple[int, int]]) -> None:
        """Write the update of spans of elements, sub-group by sub-group."""
        going: list[tuple[Emitter, str]] = []
        lengths, size = [end - begin for begin, end in spans], held_size(self.optimizer)
        refuse_many(self.optimizer, sum(-(-length // size) for length in lengths), sum(lengths))
        groups = list(held_groups(self.optimizer, spans))
        places = {group.number: emit.under(f"group{group.number}") for group in groups}
        by_host = [group for group in groups if not group.on_device]
        coming, leaving, turn = deque[list[str]](), deque[tuple[Emitter, str] | None](), 0
        states: dict[int, list[str]] = {}
        for group in groups:
            here = places[group.number]
            while not group.on_device and turn < len(by_host) and len(coming) <= AHEAD:
                if turn >= LANDINGS and (left := leaving.popleft()):
                    left[0].wait(left[1])  # whose buffer this was
                coming.append(self._bring(places[by_host[turn].number], by_host[turn]))
                turn += 1
            for each in groups[group.number : group.number + 1 + AHEAD]:
                if each.on_device and each.number not in states:
                    states[each.number] = self._fetch(places[each.number], each)
            if group.on_device:
                going += [(here, name) for name in self._on_device(here, group, states[group.number])]
                continue
            name = self._on_host(here, group, coming.popleft())
            leaving.append((here, name) if name else None)
        for here, name in [left for left in leaving if left] + going:
            here.wait(name)

    def _fetch(self, here: Emitter, group: HeldGroup) -> list[str]:
        """Let states of a sub-group come to the device; return what that is called."""
        away, to = group.within(self.away), self.offload.parameters
        coming = [here.start(COMING[self.optimizer.to], UP, group.elements * self.states_bytes, "states_up")]
        if to is not None and away and not self.rounds:
            coming.append(here.start(COMING[to], UP, away * FP32_BYTES, "weights_up"))
        return coming

    def _on_device(self, here: Emitter, group: HeldGroup, coming: Sequence[str]) -> list[str]:
        """Update once its states are there, and let them go; return the names of what is on its way back."""
        size, away, to = group.elements * self.states_bytes, group.within(self.away), self.offload.parameters
        for name in coming:
            here.wait(name)
        rounded = FP32_BYTES + self.job.element_bytes if self.rounds else 0
        moved = float(group.elements * (ADAM_BYTES_PER_ELEMENT + rounded))
        here.compute("adamw", Memory(moved, kernels=8, work="adamw"))
        going = [here.start(GOING[self.optimizer.to], DOWN, size, "states_down")]
        if to is not None and away:
            going.append(here.start(GOING[to], DOWN, away * self.weight_bytes, "weights_down"))
        return going

    def _bring(self, here: Emitter, group: HeldGroup) -> list[str]:
        """Let come to the host what the device has of a sub-group; return what it is called."""
        staying = group.elements - group.within(self.away)
        names = [here.start("to_host", DOWN, group.elements * FP32_BYTES, "gradients_down")]
        if not self.rounds and staying:
            names.append(here.start("to_host", DOWN, staying * FP32_BYTES, "weights_down"))
        return names

    def _on_host(self, here: Emitter, group: HeldGroup, coming: Sequence[str]) -> str | None:
        """Let the host's cores update a sub-group, and round its weights; return what goes back is called."""
        count, away = group.elements, group.within(self.away)
        staying = count - away
        states = count * self.states_bytes if self.optimizer.to == "disk" else 0
        weights = away * self.weight_bytes if self.offload.parameters == "disk" else 0
        if read := states + (0 if self.rounds else weights):
            here.wait(here.start("disk_read", READ, read, "read"))
        for name in coming:
            here.wait(name)
        rounded = count * (FP32_BYTES + self.weight_bytes) if self.rounds else 0
        here.wait(here.start("host_update", CPU, count * ADAM_BYTES_PER_ELEMENT + rounded, "update"))
        going = here.start("to_device", UP, staying * self.weight_bytes, "weights_up") if staying else None
        if written := states + weights:
            here.wait(here.start("disk_write", WRITE, written, "write"))
        return going


def held_update(job: Job, offload: Offload | None, *, rounds: bool, away: range = range(0)) -> HeldUpdate | None:
    """Return how a job's states are updated; None where they are on the device, or a CPU's memory is the host's."""
    if offload is None or offload.optimizer is None or job.machine.device.type == "cpu":
        return None
    return HeldUpdate(job, offload, rounds, away)
