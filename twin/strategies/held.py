"""Optimizer states beyond the device where gradients stay on it until the update, as the runtime has it.

* Without a stride the host's cores update each sub-group: its gradients come down, its new weights go up, one sub-group
  after the other, through memory that is not pinned.
* Of each `stride` sub-groups the last is updated on the device, whose states come and go through pinned memory beside
  the work on their neighbours.

A CPU's memory is the host's: nothing is copied there that a plain update would not move.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.description.job import Job
from twin.description.offload import Offload, OptimizerOffload
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies.fetch import COMING, GOING
from twin.strategies.offload import CAST, CPU, DOWN, READ, UP, WRITE, SubGroup, sub_groups
from twin.strategies.sizes import ADAM_BYTES_PER_ELEMENT, FP32_BYTES, MOMENTS_BYTES


@dataclass(frozen=True)
class HeldUpdate:
    """The update of a rank's elements."""

    job: Job
    offload: OptimizerOffload
    rounds: bool
    """Layers compute with rounded copies of master weights, which then lie beyond the device too."""

    @property
    def states_bytes(self) -> int:
        """Of an element, beyond the device."""
        return MOMENTS_BYTES + (FP32_BYTES if self.rounds else 0)

    def emit(self, emit: Emitter, own: int) -> None:
        """Write the update of so many elements, sub-group by sub-group."""
        groups = sub_groups(self.offload, own)
        going: list[tuple[Emitter, str]] = []
        for group in groups:
            here = emit.under(f"group{group.number}")
            if group.on_device:
                going.append((here, self._on_device(here, group)))
            else:
                self._on_host(here, group)
        for here, name in going:
            here.wait(name)

    def _on_device(self, here: Emitter, group: SubGroup) -> str:
        """Bring states, update, and let them go; return the name of their way back."""
        size = group.elements * self.states_bytes
        here.wait(here.start(COMING[self.offload.to], UP, size, "states_up"))
        rounded = FP32_BYTES + self.job.element_bytes if self.rounds else 0
        moved = float(group.elements * (ADAM_BYTES_PER_ELEMENT + rounded))
        here.compute("adamw", Memory(moved, kernels=8, work="adamw"))
        return here.start(GOING[self.offload.to], DOWN, size, "states_down")

    def _on_host(self, here: Emitter, group: SubGroup) -> None:
        """Let the host's cores update a sub-group."""
        count = group.elements
        if self.offload.to == "disk":
            here.wait(here.start("disk_read", READ, count * self.states_bytes, "read"))
        if not self.rounds:
            here.wait(here.start("cast_to_host", CAST, count * FP32_BYTES, "weights_down"))
        here.wait(here.start("cast_to_host", CAST, count * FP32_BYTES, "gradients_down"))
        here.wait(here.start("host_update", CPU, count * ADAM_BYTES_PER_ELEMENT, "update"))
        wide = self.job.element_bytes if self.rounds else FP32_BYTES
        here.wait(here.start("cast_to_device", CAST, count * wide, "weights_up"))
        if self.offload.to == "disk":
            here.wait(here.start("disk_write", WRITE, count * self.states_bytes, "write"))


def held_update(job: Job, offload: Offload | None, *, rounds: bool) -> HeldUpdate | None:
    """Return how a job's states are updated; None where they are on the device, or a CPU's memory is the host's."""
    if offload is None or offload.optimizer is None or job.machine.device.type == "cpu":
        return None
    return HeldUpdate(job, offload.optimizer, rounds)
