"""AdamW whose states lie beyond the device, sub-group by sub-group (`offload.optimizer`).

* Moments lie in the host's memory or in a file, and so do master weights, where layers compute with rounded ones.
* Without a stride the host's cores update each sub-group, as DeepSpeed's ZeRO-Offload does: the same kernel of PyTorch
  as without, on the CPU. So on a host without GPUs training is the same to the bit; on a GPU up to how its kernel
  rounds.
* Of each `stride` sub-groups the last is updated on the device: its states are copied there and back beside the work on
  its neighbours (Deep Optimizer States). With stride 1 all are, and training is the same to the bit there too.

The bounds of sub-groups are multiples of `ALIGNED` elements: a kernel goes through whole vectors from there on as it
does without them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.step.context import Context
from runtime.step.lanes import Lanes
from runtime.step.optimizer import FUSED_ADAM, MOMENTS, MakeAdam, Optimizer
from runtime.step.tiers import Room
from twin.description.offload import OptimizerOffload
from twin.description.train import Adam

ALIGNED = 1024
"""Elements; a vector of any CPU, and what a thread takes at a time, divide it."""


@dataclass
class SubGroup:
    """Elements `begin` to `end` of the flat buffers, which are updated together."""

    begin: int
    end: int
    decay: float
    on_device: bool
    step: torch.Tensor
    """Updates so far, a scalar where the update is done."""


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
        self._make_adam, device = make_adam, self.context.store.device
        size = max(ALIGNED, self._offload.sub_group_elements // ALIGNED * ALIGNED)
        stride, decayed = self._offload.stride, self.context.store.decayed
        self._groups: list[SubGroup] = []
        for begin, end in self.spans:
            decay = self.settings.weight_decay if begin < decayed else 0.0
            for first in range(begin, end, size):
                on_device = stride is not None and (len(self._groups) + 1) % stride == 0
                where = device if on_device or device.type in ("cpu", "meta") else torch.device("cpu")
                step = torch.zeros((), dtype=torch.float32, device=where)
                self._groups.append(SubGroup(first, min(first + size, end), decay, on_device, step))
        self._lanes = Lanes(device, size, self.context.store.master_type)

    def _attach(self, steps: int) -> None:
        """Count updates from here on."""
        for group in self._groups:
            group.step.fill_(float(steps))

    def _update(self, learning_rate: float) -> None:
        stopped = self.stopped.float()
        # the host's kernel is told on the host: the one thing of a step that it has to wait for
        on_host = stopped.cpu() if stopped.device.type == "cuda" else stopped
        for group in self._groups:
            if group.on_device:
                staging = self._lanes.fetch(self._tensors(group))
                self._fused(group, staging.tensors, self._gradient(group), learning_rate, stopped)
                self._publish(group, staging.tensors[0])
                self._lanes.give_back(staging, self._tensors(group))
            else:
                self._on_host(group, learning_rate, on_host)
                self._publish(group, self._tensors(group)[0])
        self._lanes.finish()

    def _tensors(self, group: SubGroup) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Weights and both moments of a sub-group, where they lie."""
        place = slice(group.begin, group.end)
        first, second = (self._moments[name][self.owned.inside(place)] for name in MOMENTS)
        return self.context.store.master_of(place), first, second

    def _gradient(self, group: SubGroup) -> torch.Tensor:
        return self.context.store.gradient[group.begin : group.end]

    def _on_host(self, group: SubGroup, learning_rate: float, stopped: torch.Tensor) -> None:
        """Let the host's cores update a sub-group; what of it lies on the device comes and goes."""
        weights, first, second = self._tensors(group)
        gradient = self._gradient(group)
        if gradient.device.type != "cuda":
            self._fused(group, (weights, first, second), gradient, learning_rate, stopped)
            return
        here = weights.cpu() if weights.device.type == "cuda" else weights
        self._fused(group, (here, first, second), gradient.cpu(), learning_rate, stopped)
        if here is not weights:
            weights.copy_(here)

    def _fused(
        self,
        group: SubGroup,
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        gradient: torch.Tensor,
        learning_rate: float,
        stopped: torch.Tensor,
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
            store.compute[group.begin : group.end].copy_(weights)
