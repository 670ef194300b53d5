"""What the parts of a step share whose weights FSDP2 gathers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh

from runtime.model.context import ModelContext
from twin.schedule.ops import Phase


@dataclass(frozen=True)
class Sharing:
    """Names of the communicators of a rank that has a part of each weight."""

    gather: str
    """Ranks that together have all of it, on a stream for weights."""
    scatter: str
    """The same ones, on a stream for gradients."""
    replicate: str
    """Ranks that have the same part (HSDP)."""


@dataclass
class ShardedContext(ModelContext):
    """The context of a job whose ranks may divide weights, gradients and optimizer states."""

    phase: Phase = "fwd"
    """Which pass gathers weights now."""

    def __post_init__(self) -> None:
        self.rows_over = "weights" if self.sharded else None
        super().__post_init__()

    @property
    def sharing(self) -> Sharing:
        """Who divides weights, and who has the same part of them."""
        raise NotImplementedError

    @property
    def replicas(self) -> int:
        """Ranks that have the same part."""
        return self.mesh.size(self.sharing.replicate)

    @property
    def sharded(self) -> bool:
        """Whether weights are divided at all."""
        return self.mesh.size(self.sharing.gather) > 1

    @property
    def stored_type(self) -> torch.dtype:
        """FSDP2 rounds what it gathers: a rank's own rows are master weights."""
        return self.master_type if self.sharded else self.compute_type

    @property
    def reduce_type(self) -> torch.dtype:
        """Of gradients on their way."""
        raise NotImplementedError

    @property
    def waits_at_once(self) -> bool:
        """Whether a reduction is waited for where it starts: a CPU has no streams for FSDP2 to go on beside."""
        return self.device_kind == "cpu"

    def weights_mesh(self) -> DeviceMesh:
        """Return the ranks that divide weights, as PyTorch has it: of replicas × weights the inner dimension."""
        mesh, names, kind = self.mesh, self.sharing, self.device.type
        gather = mesh.groups[names.gather]
        with unset_fake_temporarily():  # it reads numbers of ranks, also where a recorder's tensors have none
            if self.replicas == 1:
                return DeviceMesh.from_group(gather, kind, mesh_dim_names=("weights",))
            ranks = torch.tensor(mesh.plane(names.replicate, names.gather))
            both = [mesh.groups[names.replicate], gather]
            return DeviceMesh.from_group(both, kind, mesh=ranks, mesh_dim_names=("data", "weights"))["weights"]
