"""What lies where: bytes of a rank's state in its host's memory, on drives, and what that leaves on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twin.description.offload import Offload, OptimizerOffload, Tier
from twin.strategies.fetch import AHEAD
from twin.strategies.held import LANDINGS, LANE_ROWS, LANES, held_size
from twin.strategies.offload import STATES_BYTES, offloaded
from twin.strategies.sizes import FP32_BYTES, MOMENTS_BYTES
from twin.strategies.sub_groups import updated_by_host, updated_on_device

BUFFERS = 2 + AHEAD
"""Of what passes through: what is used, what comes, and what goes."""


@dataclass(frozen=True)
class Held:
    """What a rank holds of a job, whatever tier it lies in; elements, and bytes of activations."""

    element_bytes: int
    own: int
    """Elements that it updates."""
    weights: int
    """Elements of its part of the weights."""
    unit: int
    """Elements of the largest part of its own that travels at once."""
    kept_bytes: Sequence[float]
    """What each block keeps for its backward pass."""
    bucket: int
    """Elements of its own of gradients that arrive together."""
    micro_steps: int
    away: int | None = None
    """Elements of weights that lie beyond the device with `parameters`; None: all."""
    here: int | None = None
    """Most elements of those that are on the device at once; None: of units as many as there are buffers."""
    spans: Sequence[int] | None = None
    """Elements of spans that are cut into sub-groups, each on its own, as the runtime does; None: all of them at once,
    as DeepSpeed does."""
    lands: bool = False
    """What the host updates comes to it: a CPU's memory is the host's."""

    def tiers(
        self, offload: Offload, *, states_bytes: int = STATES_BYTES, gradients_stay: bool = False
    ) -> dict[Tier, dict[str, float]]:
        """Count the bytes of each tier by category, those that pass through the host's memory included.

        `states_bytes` are those of an element's states that lie there; `gradients_stay` on the device until the update.
        """
        found: dict[Tier, dict[str, float]] = {"host": {}, "disk": {}}
        block = max(self.kept_bytes, default=0.0)
        self._lay(found, "activations", offload.activations, sum(self.kept_bytes[:-1]), BUFFERS * block)
        weights = float(self.element_bytes * self._away)
        self._lay(found, "weights", offload.parameters, weights, float(BUFFERS * self.element_bytes * self.unit))
        if (optimizer := offload.optimizer) is not None:
            count = offloaded(optimizer, self.own)
            passing = BUFFERS * min(optimizer.sub_group_elements, count)
            passing = self._consumed(count) if optimizer.update == "consumed" else passing
            self._lay(found, "optimizer", optimizer.to, float(states_bytes * count), float(states_bytes * passing))
            if not gradients_stay:
                found["host"]["gradients"] = self._gradients(optimizer, count)
            if self.spans is not None and self.lands:
                groups, largest = updated_by_host(optimizer.stride, held_size(optimizer), self.spans)
                rows = 1 if states_bytes > MOMENTS_BYTES else 2  # weights pass with gradients
                found["host"]["gradients, passing"] = float(FP32_BYTES * rows * largest * min(LANDINGS, groups))
        return {tier: of for tier, of in found.items() if of}

    @property
    def _away(self) -> int:
        return self.weights if self.away is None else self.away

    def _gradients(self, optimizer: OptimizerOffload, count: int) -> float:
        """Sums in the type of products, and the fp32 gradients that an update after all of them reads."""
        if optimizer.update == "after":
            return float(count * (self.element_bytes + FP32_BYTES))
        passing = count if self.micro_steps > 1 else min(count, self._consumed(count))
        return float(self.element_bytes * passing)

    def _consumed(self, count: int) -> int:
        """Elements that pass where gradients are used up as they come.

        Of parts as large as a block: what comes, what waits for the next, what is updated, and what goes.
        """
        return (BUFFERS + 1) * max(self.bucket, count // max(1, len(self.kept_bytes)))

    @staticmethod
    def _lay(found: Mapping[Tier, dict[str, float]], name: str, tier: Tier | None, size: float, passing: float) -> None:
        if tier is None or size <= 0.0:
            return
        found[tier][name] = size
        if tier == "disk":
            found["host"][f"{name}, passing"] = min(size, passing)

    def on_device(
        self,
        offload: Offload,
        used: Mapping[str, float],
        *,
        states_bytes: int = STATES_BYTES,
        gradients_stay: bool = False,
    ) -> dict[str, float]:
        """Return what stays on the device of what would be there without offload, by category; the rest as in `tiers`.

        Weights of which no rounded copy is kept pass through it with their states, where they lie beyond it too.
        """
        left = dict(used)
        if (optimizer := offload.optimizer) is not None:
            count = offloaded(optimizer, self.own)
            stay = self.own - count
            left["optimizer"] = used["optimizer"] * stay / self.own if self.own else 0.0
            if not gradients_stay:
                left["gradients"] = used["gradients"] * stay / self.own if self.own else 0.0
            if optimizer.stride is not None:
                device, largest = self._updated_on_device(optimizer, count)
                if not gradients_stay:
                    left["gradients"] += FP32_BYTES * device
                left["passing states"] = self._passing(offload, states_bytes, device, largest)
        if offload.parameters is not None:
            here = min(self._away, BUFFERS * self.unit) if self.here is None else self.here
            left["weights"] = float(self.element_bytes * (self.weights - self._away + here))
        if offload.activations is not None:
            left["activations"] = self._activations(used["activations"])
        return left

    def _passing(self, offload: Offload, states_bytes: int, device: int, largest: int) -> float:
        """Count the buffers of sub-groups that the device updates: the runtime's lanes, or as many as there is need."""
        if self.spans is not None:
            return float(FP32_BYTES * LANE_ROWS * largest * (min(LANES, -(-device // largest)) if largest else 0))
        with_weights = offload.parameters is not None and states_bytes == MOMENTS_BYTES
        passing = states_bytes + FP32_BYTES * with_weights
        return float(passing * min(device, BUFFERS * largest))

    def _updated_on_device(self, optimizer: OptimizerOffload, count: int) -> tuple[int, int]:
        """Return how many of the elements the device updates, and those of its largest sub-group."""
        if self.spans is None:
            return updated_on_device(optimizer.stride, optimizer.sub_group_elements, [count])
        return updated_on_device(optimizer.stride, held_size(optimizer), self.spans)

    def _activations(self, used: float) -> float:
        """Return what stays of activations, of which as many as are the least would be kept of all blocks.

        Neighbours are there at once: of what is swapped whole in between there are few.
        """
        if not self.kept_bytes:
            return used
        kept, at_once = self.kept_bytes, 1 + BUFFERS
        most = max(sum(kept[first : first + at_once]) for first in range(max(1, len(kept) - at_once + 1)))
        return used - min(kept) * len(kept) + most
