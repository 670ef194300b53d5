"""The keys of `offload:`, what of a job's state lies beyond the devices' memory, and how it is used there.

* Optimizer states: updated by the host's cores, as DeepSpeed's ZeRO-Offload does; interleaved with updates on the
  device (Deep Optimizer States, arXiv 2410.21316), or for a share of them only (Twin-Flow).
* Weights and activations: copied back in time for their use (ZeRO-Infinity, arXiv 2104.07857; Fuyou, arXiv 2403.06504).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from twin.description.spec import Spec

Tier = Literal["host", "disk"]
"""Where a part of a job's state lies: the memory of its node's host, or drives of the node."""
SUB_GROUP_ELEMENTS = 1_000_000_000


class OptimizerOffload(Spec):
    """Optimizer states that lie beyond the device."""

    to: Tier = "host"
    """The host's memory, or drives, from which each sub-group is read and to which it is written back."""
    ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of them; the rest stays on the device and is updated there (Twin-Flow's `ratio`)."""
    sub_group_elements: Annotated[int, Field(gt=0, le=10**13, strict=True)] = SUB_GROUP_ELEMENTS
    """Elements of a rank that are updated together (DeepSpeed's `sub_group_size`)."""
    stride: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = None
    """Of so many sub-groups the last is updated on the device (1: all), its states copied there and back beside the
    others' updates, and new weights are copied beside the next update (Deep Optimizer States); absent: the host
    updates all."""
    overlapped_gradients: StrictBool = False
    """Gradients leave beside the backward pass, through pinned memory; false: each by a blocking copy that changes its
    type on the host, as DeepSpeed did until version 0.15."""
    bound_cores: StrictBool = True
    """The threads of each rank keep to cores of their own (DeepSpeed's `--bind_cores_to_rank`, off by default there);
    false: the host's updates take longer where several ranks share a node (`unbound_update` of the machine's host)."""
    update: Literal["after", "consumed"] = "after"
    """after: once all gradients are there and their norm is known; consumed: each unit's as soon as its gradients have
    come, beside the rest of the backward pass (Fuyou): then gradients cannot be clipped."""


class Offload(Spec):
    """What of a job's state lies beyond the devices' memory."""

    optimizer: OptimizerOffload | None = None
    """Optimizer states, master weights among them; absent: on the device."""
    parameters: Tier | None = None
    """Weights that are not in use; absent: on the device."""
    directory: str | None = None
    """For the runtime: where files of `disk` are made, on drives of each host. They have no names and leave nothing."""
    activations: Tier | None = None
    """What a block keeps for its backward pass, or its input if it is recomputed; absent: on the device."""
    swap_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """With `recompute` and `activations`: share of blocks, evenly spread, of which everything goes there instead of the
    input alone, and which are not computed again (Ratel's `swap_ratio`)."""

    def swaps(self, layer: int) -> bool:
        """Tell whether a block is swapped whole, though others are recomputed.

        >>> [Offload(activations="host", swap_share=0.5).swaps(layer) for layer in range(4)]
        [False, True, False, True]
        """
        return int((layer + 1) * self.swap_share + 1e-9) > int(layer * self.swap_share + 1e-9)

    @property
    def tiers(self) -> frozenset[Tier]:
        """The tiers that are used."""
        optimizer = None if self.optimizer is None else self.optimizer.to
        return frozenset(tier for tier in (optimizer, self.parameters, self.activations) if tier is not None)
