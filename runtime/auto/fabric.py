"""Lightning Fabric on a 4D grid: `Fabric(strategy=FabricStrategy({"z": 2, "x": 2}))`.

Ranks that differ in x and y only see the same rows, whichever sampler Fabric makes. Needs the package
lightning-fabric (or lightning); processes are started by torchrun or srun.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric.strategies.parallel import ParallelStrategy
from torch.nn import Parameter

from runtime.auto import gradients, weights
from runtime.auto.parallel import Parallel, auto_parallelize, mesh_of
from runtime.parallel.flight_recorder import forget_collectives
from runtime.parallel.mesh import Mesh
from twin.description.problems import fail
from twin.strategies.four_d.grid import Grid

MADE_INSIDE = "make the model in `with fabric.init_module():`, and only then set it up"
KINDS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "avg": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class FabricStrategy(ParallelStrategy):
    """Cuts linears of the models that are made in `fabric.init_module()`; see `auto_parallelize` for the options."""

    def __init__(self, grid: Grid | Mapping[str, int] | Mesh, **options: Any) -> None:
        super().__init__()
        self.grid, self.options = grid, options
        self._mesh: Mesh | None = None
        self._blocks: list[Parallel] = []
        self._reduced: set[Parameter] = set()
        """Whose gradients are those of all rows: nothing was added since they were reduced."""

    @property
    def parallel(self) -> Parallel:
        """What `auto_parallelize` gave back, for the last block."""
        if not self._blocks:
            raise fail("FabricStrategy", MADE_INSIDE)
        return self._blocks[-1]

    @property
    def root_device(self) -> torch.device:
        """This rank's device."""
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Part of the rows: that of the replica, which ranks along x and y share."""
        assert self._mesh is not None
        return {"num_replicas": self._mesh.grid.replicas, "rank": self._mesh.replica}

    def setup_environment(self) -> None:
        """Join the world, and make the mesh."""
        super().setup_environment()
        cluster = self.cluster_environment
        if not dist.is_initialized() and cluster is not None and cluster.world_size() > 1:
            backend = "nccl" if self.root_device.type == "cuda" else "gloo"
            if backend == "gloo":
                forget_collectives(os.environ)
            address = f"tcp://{cluster.main_address}:{cluster.main_port}"
            if cluster.creates_processes_externally:
                address = "env://"  # torchrun and srun say where to meet
            dist.init_process_group(
                backend, init_method=address, rank=cluster.global_rank(), world_size=cluster.world_size()
            )
        self._mesh = mesh_of(self.grid)

    @contextmanager
    def module_init_context(self, empty_init: bool | None = None) -> Iterator[None]:
        """Make a model, to be cut when the block ends; its first weights are made whole."""
        if empty_init:
            raise fail("empty_init", "initial weights are cut as they are made; leave it out", empty_init)
        assert self._mesh is not None
        with auto_parallelize(self._mesh, **self.options) as block, self.root_device:
            yield
        self._blocks.append(block)

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the model as it is: it is cut already. Raises DescriptionError for what nobody would reduce."""
        known = {p for block in self._blocks for root in block.declared.roots for p in root.parameters()}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and parameter not in known:
                raise fail(name, MADE_INSIDE)
        return module

    def module_to_device(self, module: torch.nn.Module) -> None:
        """Move to this rank's device what is not there yet."""
        module.to(self.root_device)

    def backward(self, tensor: torch.Tensor, module: torch.nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Go backward; gradients are reduced once, before they are clipped or used."""
        super().backward(tensor, module, *args, **kwargs)
        self._reduced.clear()

    def _reduce(self, optimizer: Any) -> list[Parameter]:
        """Reduce what an optimizer updates, and nothing else: gradients of others may still be adding up."""
        own = [p for group in optimizer.param_groups for p in group["params"]]
        waiting = [p for p in own if p not in self._reduced]
        if waiting:
            for block in self._blocks:
                block.reduce_gradients(waiting)
            self._reduced.update(waiting)
        return own

    def optimizer_step(self, optimizer: Any, *, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update, by gradients of all rows: those that are there, or that a closure makes."""
        if closure is None:
            self._reduce(optimizer)
            return super().optimizer_step(optimizer, **kwargs)

        def reduced() -> Any:
            loss = closure()
            self._reduce(optimizer)
            return loss

        return super().optimizer_step(optimizer, closure=reduced, **kwargs)

    def clip_gradients_norm(
        self,
        module: torch.nn.Module,
        optimizer: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> torch.Tensor:
        """Clip what an optimizer updates by the 2-norm of its full gradient; returns the norm.

        Raises RuntimeError, as Fabric does, where that is no finite number.
        """
        del module  # Fabric clips what the optimizer has
        if norm_type != 2.0:
            raise fail("norm_type", "only the 2-norm is known over a grid", norm_type)
        sharded, serial = self._trained(self._reduce(optimizer))
        self.precision.unscale_gradients(optimizer)
        total = gradients.norm(self.parallel.context.collectives, sharded, serial)
        if error_if_nonfinite and not total.isfinite():
            raise RuntimeError(f"the gradient's norm is {total.item()}: it cannot be clipped (error_if_nonfinite=True)")
        gradients.clip((*sharded, *serial), total, max_norm)
        return total

    def clip_gradients_value(self, module: torch.nn.Module, optimizer: Any, clip_val: float) -> None:
        """Clip each number of what an optimizer updates: of the gradient of all rows, not of this rank's."""
        self._reduce(optimizer)
        super().clip_gradients_value(module, optimizer, clip_val)

    def _trained(self, among: Iterable[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
        found = [block.trained(among) for block in self._blocks]
        return [p for cut, _ in found for p in cut], [p for _, whole in found for p in whole]

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce over all ranks; equal values of ranks that share rows count once each, so a mean is that of rows."""
        if not isinstance(tensor, torch.Tensor) or not dist.is_initialized():
            return tensor
        found = tensor.clone()
        dist.all_reduce(found, KINDS.get(str(reduce_op), reduce_op), group=group)
        return found / dist.get_world_size(group) if str(reduce_op) in ("mean", "avg") else found

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        del name
        if dist.is_initialized():
            dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return on every rank what rank `src` has."""
        found = [obj]
        if dist.is_initialized():
            dist.broadcast_object_list(found, src)
        return found[0]

    def get_module_state_dict(self, module: torch.nn.Module) -> dict[str, Any]:
        """Gather the state of the serial model."""
        return weights.full_state(module)

    def load_module_state_dict(
        self, module: torch.nn.Module, state_dict: Mapping[str, Any], strict: bool = True
    ) -> None:
        """Take this rank's part of the serial model's state."""
        if not strict:
            raise fail("strict", "a part of a state cannot be cut; give all of it", strict)
        weights.load_full_state(module, state_dict)

    def get_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Refuse: each rank has its own part of the states."""
        remedy = "its states are cut over the ranks; save the model alone, or train with `fourfold train`"
        raise fail(type(optimizer).__name__, remedy)
