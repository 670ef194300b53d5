"""What the parts of a step share on a rank of a pipeline, of a tensor group, and of those that divide weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh

from runtime.model.rotary import Tables
from runtime.sharded.context import ShardedContext, Sharing
from runtime.strategies.megatron.ranks import Ranks
from runtime.strategies.megatron.zigzag import Places, places, some, taken
from twin.strategies.megatron.attention import CONTEXT
from twin.strategies.megatron.groups import GATHER, REPLICATE, SCATTER
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.linear import TENSOR, Half
from twin.strategies.megatron.orders import Kind

HALVES: dict[Kind, Half] = {"F": "whole", "B": "whole", "I": "input", "W": "weight"}


@dataclass
class MegatronContext(ShardedContext):
    """The context of a job on a grid of pipeline, data, context and tensor parallelism."""

    job: MegatronJob
    half: Half = "whole"
    """What of a backward pass is wanted now."""
    sequences: int = 0
    """Of a micro-step, or of what is asked for otherwise."""
    deferred: list[Callable[[], None]] = field(default_factory=list)
    """Weight gradients that are wanted later."""
    _tensor_mesh: DeviceMesh | None = None
    _shared_rotary: dict[int, Tables] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers_over = "pipeline" if self.ranks.pipeline > 1 else None
        self.sequences = self.job.concrete_micro_sequences
        super().__post_init__()

    @property
    def ranks(self) -> Ranks:
        """Who holds what."""
        grid = self.mesh.grid
        assert isinstance(grid, Ranks)
        return grid

    @property
    def sharing(self) -> Sharing:
        """Who divides weights, and who has the same part of them."""
        return Sharing(GATHER, SCATTER, REPLICATE)

    @property
    def reduce_type(self) -> torch.dtype:
        """Of gradients on their way, and of their sums over micro-steps."""
        return self.master_type if self.job.gradient_precision == "fp32" else self.compute_type

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """All ranks: of what several hold the optimizer counts one copy."""
        return (self.everyone,)

    @property
    def everyone(self) -> str:
        """The communicator of all ranks."""
        return self.ranks.everyone

    @property
    def counted_copies(self) -> int:
        """Ranks that count the same numbers in the norm of gradients."""
        return self.ranks.data

    @property
    def split(self) -> bool:
        """Whether layers are cut over tensor ranks."""
        return self.ranks.tensor > 1

    @property
    def scatters(self) -> bool:
        """Whether the residual stream is cut too: in training, where sequences are of equal length."""
        return self.split and self.job.sequence_parallel and self.training

    @property
    def shares_sequences(self) -> bool:
        """Whether ranks have some tokens each of every sequence: in training."""
        return self.training and self.ranks.size(CONTEXT) > 1

    def places(self, length: int, *, scattered: bool = False) -> Places:
        """Return the places of this rank's tokens in sequences of a length; of those that tensor ranks have apart."""
        context = self.ranks.size(CONTEXT) if self.shares_sequences else 1
        own = places(length, context, self.mesh.place(CONTEXT) if context > 1 else 0)
        if not (scattered and self.scatters):
            return own
        part = length // (context * self.ranks.tensor)
        return some(own, part * self.tensor_place, part)

    def rotary(self, length: int) -> Tables:
        """Cosines and sines of the positions of this rank's tokens, of which sequences have so many here."""
        if not self.shares_sequences:
            return super().rotary(length)
        if length not in self._shared_rotary:
            of = self.places(length * self.ranks.size(CONTEXT))
            cosines, sines = super().rotary(length * self.ranks.size(CONTEXT))
            self._shared_rotary[length] = taken(cosines, of, 0), taken(sines, of, 0)
        return self._shared_rotary[length]

    @property
    def tensor_place(self) -> int:
        """This rank's place among tensor ranks."""
        return self.mesh.place(TENSOR)

    @property
    def tensor_mesh(self) -> DeviceMesh:
        """Tensor ranks, as DTensor has them."""
        if self._tensor_mesh is None:
            with unset_fake_temporarily():
                group = self.mesh.groups[TENSOR]
                self._tensor_mesh = DeviceMesh.from_group(group, self.device.type, mesh_dim_names=(TENSOR,))
        return self._tensor_mesh

    @contextmanager
    def acting(self, kind: Kind, chunk: int, micro: int) -> Iterator[None]:
        """Stand in one action of a schedule."""
        before = self.half, self.phase
        self.half, self.phase = HALVES[kind], "fwd" if kind == "F" else "bwd"
        several = self.job.chunks > 1
        try:
            with self.ops.micro_step(micro), self.ops.within(f"{kind}{chunk}" if several else kind):
                yield
        finally:
            self.half, self.phase = before
