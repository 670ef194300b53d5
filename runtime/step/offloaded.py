"""AdamW whose states lie beyond the device, sub-group by sub-group (`offload.optimizer`).

* Moments lie in the host's memory or in a file, and so do master weights, where layers compute with rounded ones.
* Without a stride the host's cores update each sub-group, as DeepSpeed's ZeRO-Offload does: the same kernel of PyTorch
  as without, on the CPU. So on a host without GPUs training is the same to the bit; on a GPU up to how its kernel
  rounds.
* Of each `stride` sub-groups the last is updated on the device: its states are copied there and back beside the work on
  its neighbours (Deep Optimizer States). With stride 1 all are, and training is the same to the bit there too.

Sub-groups are the twin's (`twin.strategies.held`), and so are the names of what moves for each. Their bounds are
multiples of so many elements that a kernel goes through whole vectors from there on, as it does without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from runtime.parallel.ops import Place
from runtime.step.context import Context
from runtime.step.copies import Copy, Done
from runtime.step.lanes import Lanes, Tensors
from runtime.step.optimizer import ADAM_PASSES, FUSED_ADAM, MOMENTS, MakeAdam, Optimizer
from runtime.step.tiers import Room
from twin.description.library import CollectiveKind
from twin.description.offload import OptimizerOffload
from twin.description.train import Adam
from twin.schedule.kernels import Memory
from twin.strategies.fetch import COMING, GOING
from twin.strategies.held import HeldGroup, held_groups
from twin.strategies.offload import CAST, CPU, DOWN, READ, UP, WRITE


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

    def __init__(
        self, context: Context, settings: Adam, offload: OptimizerOffload, room: Room, make_adam: MakeAdam = FUSED_ADAM
    ) -> None:
        self._offload, self._room = offload, room
        super().__init__(context, settings, make_adam)

    def _made_moments(self) -> dict[str, torch.Tensor]:
        """Lay moments beyond the device, and master weights that no layer computes with."""
        store = self.context.store
        elements = self.owned.elements
        if store.rounds:
            weights = self._room.zeros(elements, store.master_type)
            weights.copy_(store.master)
            store.master = weights
        return {name: self._room.zeros(elements, store.master_type) for name in MOMENTS}

    def _prepare(self, make_adam: MakeAdam) -> None:
        """Divide what is updated into sub-groups."""
        store = self.context.store
        self._make_adam, device = make_adam, store.device
        self._groups: list[SubGroup] = []
        for group in held_groups(self._offload, self.spans):
            decay = self.settings.weight_decay if group.begin < store.decayed else 0.0
            where = device if group.on_device or device.type in ("cpu", "meta") else torch.device("cpu")
            self._groups.append(SubGroup(group, decay, torch.zeros((), dtype=torch.float32, device=where)))
        largest = max((group.of.elements for group in self._groups if group.of.on_device), default=0)
        self._lanes = Lanes(device, largest, store.master_type)

    def _attach(self, steps: int) -> None:
        """Count updates from here on."""
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
        # the host's kernel is told on the host: the one thing of a step that it has to wait for
        on_host = stopped.cpu() if stopped.device.type == "cuda" else stopped
        going: list[Copy] = []
        for group in self._groups:
            if group.of.on_device:
                going.append(self._on_device(group, learning_rate, stopped))
            elif self.context.copies.named:
                self._on_host(group, learning_rate, on_host)
            else:
                tensors = self._tensors(group)
                self._fused(group, tensors, self._gradient(group), learning_rate, on_host)
                self._publish(group, tensors[0])
        for copy in going:
            copy.wait()
        self._lanes.finish()

    @property
    def _state_bytes(self) -> int:
        """Bytes of an element's states beyond the device."""
        wide = self.context.store.master_type.itemsize
        return wide * (len(MOMENTS) + self.context.store.rounds)

    def _tensors(self, group: SubGroup) -> Tensors:
        """Weights and both moments of a sub-group, where they lie."""
        first, second = (self._moments[name][self.owned.inside(group.flat)] for name in MOMENTS)
        return self.context.store.master_of(group.flat), first, second

    def _on_device(self, group: SubGroup, learning_rate: float, stopped: torch.Tensor) -> Copy:
        """Bring states to the device, update, and let them go; return their way back."""
        copies, place, tensors = self.context.copies, group.place, self._tensors(group)
        size, to = group.of.elements * self._state_bytes, self._offload.to
        staging = self._lanes.staging(group.of.elements)
        bring = partial(self._lanes.fetch, staging, tensors)
        copies.start(place, "states_up", COMING[to], UP, size, bring, phase="optimizer").wait()

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

    def _on_host(self, group: SubGroup, learning_rate: float, stopped: torch.Tensor) -> None:
        """Let the host's cores update a sub-group of a GPU; what of it lies on the device comes and goes."""
        store, count = self.context.store, group.of.elements
        wide, on_disk = store.master_type.itemsize, self._offload.to == "disk"
        there, named = self._tensors(group), partial(self._named, group.place)
        here = [*there]
        if on_disk:
            states = range(0 if store.rounds else 1, 3)

            def read() -> None:
                for row in states:
                    here[row] = there[row].clone()

            named("read", "disk_read", READ, count * self._state_bytes, read)
        if not store.rounds:
            named("weights_down", "cast_to_host", CAST, count * wide, lambda: _bring(here, 0, there[0]))
        gradient = [self._gradient(group)]
        named("gradients_down", "cast_to_host", CAST, count * wide, lambda: _bring(gradient, 0, gradient[0]))

        def update() -> None:
            self._fused(group, (here[0], here[1], here[2]), gradient[0], learning_rate, stopped)

        named("update", "host_update", CPU, count * ADAM_PASSES * wide, update)

        def publish() -> None:
            if store.rounds:
                self._publish(group, here[0])
            else:
                there[0].copy_(here[0])

        named("weights_up", "cast_to_device", CAST, count * store.compute_type.itemsize, publish)
        if on_disk:

            def write() -> None:
                for row in states:
                    there[row].copy_(here[row])

            named("write", "disk_write", WRITE, count * self._state_bytes, write)

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
        self, group: SubGroup, tensors: Tensors, gradient: torch.Tensor, learning_rate: float, stopped: torch.Tensor
    ) -> None:
        """Update a sub-group where its tensors are, by the kernel that updates all at once without offload."""
        settings = self.settings
        weight = torch.nn.Parameter(tensors[0])
        weight.grad = gradient
        adam = self._make_adam(
            [{"params": [weight], "weight_decay": group.decay}],
            lr=learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
        )
        adam.state[weight] = {"step": group.step, **dict(zip(MOMENTS, tensors[1:], strict=True))}
        adam.grad_scale = None  # type: ignore[attr-defined]  # known to fused kernels only
        adam.found_inf = stopped  # type: ignore[attr-defined]
        adam.step()

    def _publish(self, group: SubGroup, weights: torch.Tensor) -> None:
        """Round a sub-group's master weights to what layers compute with."""
        store = self.context.store
        if store.rounds:
            store.compute[group.flat].copy_(weights)


def _bring(into: list[torch.Tensor], row: int, tensor: torch.Tensor) -> None:
    """Put a copy of a tensor in the host's memory into a row; what is there, or has no numbers, is taken as it is."""
    into[row] = tensor.cpu() if tensor.device.type == "cuda" else tensor
