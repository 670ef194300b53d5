"""What FSDP2 gathers and reduces together, and where its shards lie.

A rank's rows of every parameter lie in the store's flat buffers, as FSDP2 divides and pads them, in the type of master
weights; what FSDP2 gathers are views of them, so that there is one copy. Where a rank has fewer rows than others
FSDP2 pads its shard in memory of its own: those few shards are copied after weights have changed (`Shards.refresh`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from runtime.model.plain import Block, PlainGPT
from runtime.parallel.ops import Place
from runtime.weights.store import Parameter


@dataclass(frozen=True)
class Unit:
    """Modules whose parameters travel together."""

    place: Place
    """Where it stands: a block, `embedding`, `head`, `root`."""
    modules: tuple[nn.Module, ...]
    members: tuple[str, ...]
    """Names of its parameters."""
    keep: bool
    """Gathered weights stay from the forward pass to the backward pass."""

    @property
    def cut(self) -> FSDPModule:
        """The unit as FSDP2 knows it, once it is cut."""
        module = self.modules[0]
        assert isinstance(module, FSDPModule)
        return module


def units_of(model: PlainGPT, *, keep: bool) -> list[Unit]:
    """Divide a model into units, in the order of the forward pass: those of the twin.

    `keep`: gathered weights stay from the forward pass to the backward pass.
    """

    def under(*prefixes: str) -> tuple[str, ...]:
        return tuple(name for name in model.names if name.startswith(prefixes))

    blocks = []
    for block in model.blocks:
        assert isinstance(block, Block)
        blocks.append(Unit(block.place, (block,), under(f"blocks.{block.place.layer}."), keep))
    span, tied = model.span, model.context.job.model.tied_embeddings
    if tied and span.first:  # what embedding and head have in common is the root's
        return [Unit(Place("root"), (model,), under("embedding.", "final_norm.", "head."), keep=True), *blocks]
    if span.first:
        blocks.insert(0, Unit(Place("embedding"), (model.embedding,), under("embedding."), keep))
    if span.last:
        blocks.append(Unit(Place("head"), (model.final_norm, model.head), under("final_norm.", "head."), keep=True))
    return blocks


def made_on_meta(parameter: Parameter) -> nn.Parameter:
    """Make a module's parameter of full shape and no memory, to be cut."""
    kind = parameter.weight.dtype
    with unset_fake_temporarily():
        return nn.Parameter(torch.empty(parameter.shard.local_shape, dtype=kind, device="meta"))


def cut(model: PlainGPT, units: list[Unit], mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> Shards:
    """Let FSDP2 shard the units over a mesh of one dimension, and lay its shards into the store."""
    innermost_first = sorted(units, key=lambda unit: model in unit.modules)
    # parameters have no memory yet: a recorder's tensors, slow where they are cut into thousands, need not be any
    with unset_fake_temporarily():
        for unit in innermost_first:
            modules = list(unit.modules)
            single: nn.Module | list[nn.Module] = modules[0] if len(modules) == 1 else modules
            fully_shard(single, mesh=mesh, reshard_after_forward=not unit.keep, mp_policy=policy)
        if model not in innermost_first[-1].modules:
            fully_shard(model, mesh=mesh, mp_policy=policy)  # the root, with nothing of its own
    for before, after in pairwise(units):
        before.cut.set_modules_to_forward_prefetch([after.cut])
    for name in model.names:
        parameter, sharded = model.context.store.parameters[name], model.parameter(name)
        assert isinstance(sharded, DTensor)
        shape, stride = sharded.size(), sharded.stride()
        here = part_of(parameter.weight.detach(), sharded)
        ours = DTensor.from_local(here, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        model.hold(name, nn.Parameter(ours))
    model.load_state_dict({}, strict=False)  # so FSDP2 looks at its shards anew, and pads those that are short
    return Shards.of(model)


def part_of(flat: torch.Tensor, sharded: DTensor) -> torch.Tensor:
    """Return what a flat range, padding included, has of a shard, in the shard's shape."""
    local = sharded.to_local().size()
    return flat[: local.numel()].view(local)


@dataclass(frozen=True)
class Shards:
    """The shards of a model that was cut."""

    model: PlainGPT
    apart: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Those that FSDP2 has padded, and what the store has of them."""

    @classmethod
    def of(cls, model: PlainGPT) -> Shards:
        """Find them."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        if is_fake(model.context.store.compute):
            return cls(model, ())  # a recorder's tensors have no memory
        for name in model.names:
            parameter, sharded = model.context.store.parameters[name], model.parameter(name)
            assert isinstance(sharded, DTensor)
            theirs, ours = sharded.to_local().detach(), part_of(parameter.weight.detach(), sharded)
            if theirs.numel() and theirs.untyped_storage().data_ptr() != ours.untyped_storage().data_ptr():
                pairs.append((theirs, ours))
        return cls(model, tuple(pairs))

    def refresh(self) -> None:
        """Bring what was padded up to date; nothing else needs it."""
        for theirs, ours in self.apart:
            theirs.copy_(ours)

    def forget(self) -> None:
        """Drop what forward passes without a backward pass have gathered."""
        assert isinstance(self.model, FSDPModule)
        self.model.reset_iter_state()
