"""AdamW whose states lie beyond the device, sub-group by sub-group (`offload.optimizer`).

* Moments lie in the host's memory or in a file, and so do master weights, where layers compute with rounded ones.
* Without a stride the host's cores update each sub-group, as DeepSpeed's ZeRO-Offload does: the same kernel of PyTorch
  as without, on the CPU. So on a host without GPUs training is the same to the bit; on a GPU up to how its kernel
  rounds. Gradients come through pinned memory, and weights that layers compute with go back so (`landings`).
* Of each `stride` sub-groups the last is updated on the device: its states come there while the one before it is
  updated, and go back while those behind it are (Deep Optimizer States). With stride 1 all are, and training is the
  same to the bit there too.

Sub-groups are the twin's (`twin.strategies.held`), and so are the names of what moves for each. Their bounds are
multiples of so many elements that a kernel goes through whole vectors from there on, as it does without them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from runtime.parallel.ops import Place
from runtime.step import adamw
from runtime.step.context import Context
from runtime.step.copies import Copy, Done
from runtime.step.landings import Landings
from runtime.step.lanes import Lanes, Staging
from runtime.step.optimizer import ADAM_PASSES, MOMENTS, Optimizer
from runtime.step.tiers import Room
from twin.description.library import CollectiveKind
from twin.description.offload import OptimizerOffload
from twin.description.train import Adam
from twin.schedule.kernels import Memory
from twin.strategies.fetch import AHEAD, COMING, GOING
from twin.strategies.held import LANDINGS, HeldGroup, held_groups
from twin.strategies.offload import CPU, DOWN, READ, UP, WRITE

Landing = tuple[torch.Tensor, list[Copy]]
"""Rows in the host's memory, and what is on its way there."""


@dataclass
class SubGroup:
    """Elements of the flat buffers, which are updated together."""

    of: HeldGroup
    decay: float
    step: torch.Tensor
    """Updates so far, a scalar where the update is done."""

    @property
    def flat(self) -> slice:
        """Where they lie."""
        return slice(self.of.begin, self.of.end)

    @property
    def place(self) -> Place:
        """Where their update stands in a step."""
        return Place(f"group{self.of.number}")


class OffloadedOptimizer(Optimizer):
    """Updates a rank's master weights, or its parts of them, whose states lie beyond its device."""

    def __init__(self, context: Context, settings: Adam, offload: OptimizerOffload, room: Room) -> None:
        self._offload, self._room = offload, room
        super().__init__(context, settings)

    def _made_moments(self) -> dict[str, torch.Tensor]:
        """Lay moments beyond the device, where master weights that no layer computes with are (`masters_in`)."""
        store, elements = self.context.store, self.owned.elements
        return {name: self._room.zeros(elements, store.master_type) for name in MOMENTS}

    def _prepare(self) -> None:
        """Divide what is updated into sub-groups."""
        store = self.context.store
        device = store.device
        self._groups: list[SubGroup] = []
        for group in held_groups(self._offload, self.spans):
            decay = self.settings.weight_decay if group.begin < store.decayed else 0.0
            where = device if group.on_device or device.type in ("cpu", "meta") else torch.device("cpu")
            self._groups.append(SubGroup(group, decay, torch.zeros((), dtype=torch.float32, device=where)))
        largest = {
            here: max((group.of.elements for group in self._groups if group.of.on_device == here), default=0)
            for here in (True, False)
        }
        self._lanes = Lanes(device, largest[True], store.master_type)
        memory = Room("host", self._room.device)
        self._landings = Landings(memory, self._lanes, 1 if store.rounds else 2, largest[False], store.master_type)
        if self.context.copies.named:
            self._landings.make(sum(not group.of.on_device for group in self._groups))

    def _count_from(self, steps: int) -> None:
        """Take it that there have been so many updates of each sub-group."""
        for group in self._groups:
            group.step.fill_(float(steps))

    def _named_update(self, learning_rate: float) -> None:
        """Update under the twin's names: of sub-groups, where copies have some, else of everything at once."""
        if self.context.copies.named:
            self._update(learning_rate)
        else:
            super()._named_update(learning_rate)

    def _update(self, learning_rate: float) -> None:
        stopped = self.stopped.float()
        by_host, turn = [group for group in self._groups if not group.of.on_device], 0
        # the host's kernel is told on the host: the one thing of a step that it has to wait for
        on_host = stopped.cpu() if by_host and stopped.device.type == "cuda" else stopped
        going: list[Copy] = []
        coming, leaving = deque[Landing](), deque[Copy]()
        fetched: dict[int, tuple[Copy, Staging]] = {}
        for number, group in enumerate(self._groups):
            lands = self.context.copies.named and not group.of.on_device
            while lands and turn < len(by_host) and len(coming) <= AHEAD:
                if turn >= LANDINGS:
                    leaving.popleft().wait()  # whose buffer this was
                coming.append(self._bring(by_host[turn], turn))
                turn += 1
            for each in self._groups[number : number + 1 + AHEAD]:
                if each.of.on_device and each.of.number not in fetched:
                    fetched[each.of.number] = self._fetch(each)
            if group.of.on_device:
                going.append(self._on_device(group, *fetched.pop(group.of.number), learning_rate, stopped))
            elif lands:
                leaving.append(self._on_host(group, *coming.popleft(), learning_rate, on_host))
            else:
                tensors = self._tensors(group.flat)
                self._fused(group, tensors, self._gradient(group), learning_rate, on_host)
                self._publish(group, tensors[0])
        for copy in (*leaving, *going):
            copy.wait()
        self._lanes.finish()

    @property
    def _state_bytes(self) -> int:
        """Bytes of an element's states beyond the device."""
        wide = self.context.store.master_type.itemsize
        return wide * (len(MOMENTS) + self.context.store.rounds)

    def _fetch(self, group: SubGroup) -> tuple[Copy, Staging]:
        """Let states of a sub-group come to the device; return that, and where they come to."""
        size, to = group.of.elements * self._state_bytes, self._offload.to
        staging = self._lanes.staging(group.of.elements)
        bring = partial(self._lanes.fetch, staging, self._tensors(group.flat))
        copy = self.context.copies.start(group.place, "states_up", COMING[to], UP, size, bring, phase="optimizer")
        return copy, staging

    def _on_device(
        self, group: SubGroup, coming: Copy, staging: Staging, learning_rate: float, stopped: torch.Tensor
    ) -> Copy:
        """Update once the states are there, and let them go; return their way back."""
        copies, place, tensors = self.context.copies, group.place, self._tensors(group.flat)
        size, to = group.of.elements * self._state_bytes, self._offload.to
        coming.wait()

        def run() -> None:
            self._fused(group, staging.tensors, self._gradient(group), learning_rate, stopped)
            self._publish(group, staging.tensors[0])

        if copies.named:
            self.context.ops.compute(place, "adamw", run, partial(self._described, group), phase="optimizer")
        else:
            run()
        take = partial(self._lanes.give_back, staging, tensors)
        return copies.start(place, "states_down", GOING[to], DOWN, size, take, phase="optimizer")

    def _described(self, group: SubGroup) -> Memory:
        """What the update of a sub-group moves on the device."""
        store = self.context.store
        rounded = store.master_type.itemsize + store.compute_type.itemsize if store.rounds else 0
        return Memory(float(group.of.elements * (ADAM_PASSES * store.master_type.itemsize + rounded)), work="adamw")

    def _bring(self, group: SubGroup, turn: int) -> Landing:
        """Let come to the host what of a sub-group lies on the device; return where to, and what it waits for."""
        store, copies, count = self.context.store, self.context.copies, group.of.elements
        rows, wide = self._landings.of(turn, count), store.master_type.itemsize
        bring = partial(self._landings.bring, rows[0], self._gradient(group))
        found = [copies.start(group.place, "gradients_down", "to_host", DOWN, count * wide, bring, phase="optimizer")]
        if not store.rounds:
            bring = partial(self._landings.bring, rows[1], store.master_of(group.flat))
            found.append(
                copies.start(group.place, "weights_down", "to_host", DOWN, count * wide, bring, phase="optimizer")
            )
        return rows, found

    def _on_host(
        self, group: SubGroup, rows: torch.Tensor, coming: list[Copy], learning_rate: float, stopped: torch.Tensor
    ) -> Copy:
        """Let the host's cores update a sub-group of a GPU, and round its weights; return their way back."""
        store, count = self.context.store, group.of.elements
        wide, narrow, on_disk = store.master_type.itemsize, store.compute_type.itemsize, self._offload.to == "disk"
        there, named = self._tensors(group.flat), partial(self._named, group.place)
        here = [*there]
        if not store.rounds:
            here[0] = rows[1]
        states = range(0 if store.rounds else 1, 3)
        if on_disk:

            def read() -> None:
                for row in states:
                    here[row] = there[row].clone()

            named("read", "disk_read", READ, count * self._state_bytes, read)
        for copy in coming:
            copy.land()
        leaves = here[0]

        def update() -> None:
            nonlocal leaves
            self._fused(group, (here[0], here[1], here[2]), rows[0], learning_rate, stopped)
            leaves = here[0]
            if store.rounds:  # where its gradient was, which nobody needs any more
                leaves = rows[0].view(store.compute_type)[:count]
                leaves.copy_(here[0])

        rounded = wide + narrow if store.rounds else 0
        named("update", "host_update", CPU, count * (ADAM_PASSES * wide + rounded), update)
        target = store.compute[group.flat] if store.rounds else there[0]
        send = partial(self._landings.send, target, leaves)
        going = self.context.copies.start(
            group.place, "weights_up", "to_device", UP, count * store.compute_type.itemsize, send, phase="optimizer"
        )
        if on_disk:

            def write() -> None:
                for row in states:
                    there[row].copy_(here[row])

            named("write", "disk_write", WRITE, count * self._state_bytes, write)
        return going

    def _named(
        self, place: Place, name: str, kind: CollectiveKind, stream: str, size: int, run: Callable[[], None]
    ) -> None:
        """Do what the host waits for."""

        def done() -> Done:
            run()
            return Done()

        self.context.copies.start(place, name, kind, stream, size, done, phase="optimizer").wait()

    def _gradient(self, group: SubGroup) -> torch.Tensor:
        return self.context.store.gradient[group.flat]

    def _fused(
        self,
        group: SubGroup,
        tensors: adamw.Tensors,
        gradient: torch.Tensor,
        learning_rate: float,
        stopped: torch.Tensor,
    ) -> None:
        """Update a sub-group where its tensors are, by the kernel that updates all at once without offload."""
        alike = adamw.Alike(group.decay, [tensors], [gradient])
        adamw.update([alike], group.step, self.settings, learning_rate=learning_rate, stopped=stopped)

    def _publish(self, group: SubGroup, weights: torch.Tensor) -> None:
        """Round a sub-group's master weights to what layers compute with."""
        store = self.context.store
        if store.rounds:
            store.compute[group.flat].copy_(weights)
