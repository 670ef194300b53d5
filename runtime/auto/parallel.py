"""`auto_parallelize`: the context manager, and the few calls that a training loop adds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from runtime.auto import gradients, weights
from runtime.auto.context import AutoContext
from runtime.auto.declare import CutPlan, Declared, watching
from runtime.auto.linear import LayerCut, ParallelLinear, run
from runtime.parallel.mesh import Communicator, Mesh
from runtime.parallel.ops import Place
from runtime.weights.shards import Shard
from twin.description.problems import DescriptionError, fail, from_pydantic
from twin.description.train import GemmLibrary
from twin.strategies.four_d.grid import Grid

BUCKET_BYTES = 25 * 2**20
REPLICAS: tuple[Communicator, ...] = ("z_scatter", "data")
LOG = logging.getLogger("fourfold")
Batch = TypeVar("Batch")


@contextmanager
def auto_parallelize(
    grid: Grid | Mapping[str, int] | Mesh,
    *,
    overlap: bool = True,
    prefetch_depth: int = 1,
    bucket_bytes: int = BUCKET_BYTES,
    verify_weights: bool = True,
    gemm_library: GemmLibrary = "auto",
) -> Iterator[Parallel]:
    """Parallelize the `nn.Linear`s of every model declared inside.

    Arguments:
        grid: sizes of data, z, y and x, whose product is the number of ranks in
            torch.distributed's world (without a world, one); or a `Mesh` that exists already.
        overlap: let collectives run beside products.
        prefetch_depth: how many layers ahead weights are gathered over z.
        bucket_bytes: how much of the gradients one all-reduce carries.
        verify_weights: compare all ranks' initial weights by checksum when the block ends.
        gemm_library: as `train.gemm_library` of a job: by what fp32 products on CPUs are computed.

    The layers are cut when the block ends, so that initialisation inside it sees full weights. Every
    rank must declare the same model from the same seed. Raises DescriptionError if it did not,
    if nothing was declared, or for a grid that does not fit.
    """
    for name, number in (("prefetch_depth", prefetch_depth), ("bucket_bytes", bucket_bytes)):
        if number < 1:
            raise fail(name, "must be at least 1", number)
    if gemm_library not in get_args(GemmLibrary):
        raise fail("gemm_library", f"must be one of {', '.join(get_args(GemmLibrary))}", gemm_library)
    context = AutoContext(mesh_of(grid), overlap, prefetch_depth, gemm_library)
    parallel = Parallel(context, bucket_bytes)
    with watching() as watch:
        yield parallel
    declared = Declared(watch.roots())
    if not declared.parameters:
        raise fail("auto_parallelize", "no parameters were declared inside the block; make the model inside it")
    plan = declared.plan(grid_of(context.mesh))
    if verify_weights and context.mesh.grid.ranks > 1 and not context.recorded:
        host = context.gloo
        device = torch.device("cpu") if host else torch.device("cuda", torch.cuda.current_device())
        weights.check_equal(context.collectives, declared.tensors(), device)
    parallel.adopt(declared, plan)


def grid_of(mesh: Mesh) -> Grid:
    """Return the 4D grid of a mesh; raises DescriptionError for another one."""
    if not isinstance(mesh.grid, Grid):
        raise fail("grid", "expected a mesh of data, z, y and x", str(mesh.grid))
    return mesh.grid


def mesh_of(grid: Grid | Mapping[str, int] | Mesh) -> Mesh:
    """Make the mesh of a grid over the whole world; raises DescriptionError if it does not fit."""
    if isinstance(grid, Mesh):
        return grid
    if not isinstance(grid, Grid):
        if not isinstance(grid, Mapping):
            raise fail("grid", "expected a Grid, a mapping with data, z, y and x, or a Mesh", grid)
        try:
            grid = Grid.model_validate(dict(grid))
        except ValidationError as error:
            raise DescriptionError(from_pydantic(error, Grid, "grid")) from None
    joined = dist.is_available() and dist.is_initialized()
    world = dist.get_world_size() if joined else 1
    if grid.ranks != world:
        remedy = (
            f"choose sizes whose product is {world}, or pass a Mesh of fewer ranks"
            if joined
            else "start so many processes (torchrun --nproc-per-node) and join them with "
            "torch.distributed.init_process_group first"
        )
        raise fail("grid", f"has {grid.ranks} ranks, but there are {world}; {remedy}", str(grid))
    return Mesh.create(grid)


@dataclass
class Parallel:
    """What `auto_parallelize` gives back: the training loop's side of it."""

    context: AutoContext
    bucket_bytes: int
    _declared: Declared | None = None
    _plan: CutPlan | None = None

    @property
    def mesh(self) -> Mesh:
        """The grid of ranks, and this rank's place in it."""
        return self.context.mesh

    @property
    def replicas(self) -> int:
        """Parts of a global batch: G_data · G_z."""
        return self.mesh.grid.replicas

    @property
    def replica(self) -> int:
        """Which part is this rank's; equal on ranks that differ in x and y only."""
        return self.mesh.replica

    @property
    def notes(self) -> list[str]:
        """Which linears stay serial and why, a line for each reason."""
        return [] if self._plan is None else self._plan.notes

    @property
    def layers(self) -> dict[str, ParallelLinear]:
        """The linears that were cut, by name."""
        return {self.declared.names[layer]: layer for layer in self._cut_layers()}

    def _cut_layers(self) -> list[ParallelLinear]:
        return [m for m in self.declared.names if isinstance(m, ParallelLinear)]

    @property
    def declared(self) -> Declared:
        """What was declared; there once the block has ended."""
        if self._declared is None:
            raise RuntimeError(
                "the auto_parallelize block has not ended: its layers are not cut yet; call this after it"
            )
        return self._declared

    def adopt(self, declared: Declared, plan: CutPlan) -> None:
        """Cut the layers as planned, in place. `auto_parallelize` calls it."""
        self._declared, self._plan = declared, plan
        if plan.cuts:
            self._cut(declared, plan)
        if self.mesh.rank == 0:
            for note in plan.notes:
                LOG.warning("auto_parallelize: %s", note)

    def _cut(self, declared: Declared, plan: CutPlan) -> None:
        apart = torch.compiler.disable  # torch.compile cannot trace collectives
        uncompiled = apart(run)
        for root in declared.roots:
            root.register_forward_pre_hook(apart(self._begin))
            root.register_forward_hook(apart(self._end), always_call=True)
        for linear, spec in plan.cuts.items():
            shard = Shard(spec, self.mesh.grid, self.mesh.coordinates)
            weight = linear.weight
            # the same parameter, so that an optimizer made inside the block still has it
            weight.data, weight.grad = weights.cut(weight.detach(), shard), None
            linear.__class__ = ParallelLinear
            layout = LayerCut(self.context, Place(declared.names[linear]), shard, uncompiled)
            linear.layout = layout  # type: ignore[assignment]  # now that it is one
            # nn.TransformerEncoderLayer hands weights to a fused kernel, unless a part has a hook
            linear.register_forward_pre_hook(_nothing)
        for module in declared.names:
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False  # only that kernel understands them

    def _begin(self, model: nn.Module, _inputs: Any) -> None:
        expected = self.context.gathers.begin(model)
        if expected is not None:
            self.context.arrivals.begin(expected)

    def _end(self, model: nn.Module, _inputs: Any, _output: Any) -> None:
        if self.context.gathers.end(model):
            self.context.arrivals.end()

    def local(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield this replica's part of each global batch; see `part`."""
        if isinstance(batches, torch.Tensor):
            raise TypeError("local() takes an iterable of batches; part() takes one")
        return (self.part(batch) for batch in batches)

    def part(self, batch: Batch) -> Batch:
        """Take this replica's rows of a global batch: a tensor, or tuples, lists, dicts of them.

        Raises DescriptionError if the rows do not divide by the replicas.
        """
        taken: Any = self._part(batch)
        return taken  # type: ignore[no-any-return]  # of the same structure

    def _part(self, batch: Any) -> Any:
        if isinstance(batch, torch.Tensor) and batch.ndim:
            count, left = divmod(len(batch), self.replicas)
            if left:
                raise fail(
                    "batch",
                    f"{len(batch)} rows do not divide by data × z = {self.replicas}; "
                    "change the batch, or cut it yourself and use weigh()",
                )
            return batch[self.replica * count : (self.replica + 1) * count]
        if isinstance(batch, Mapping):
            return {key: self._part(value) for key, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self._part, batch))
        if isinstance(batch, list | tuple):
            return type(batch)(map(self._part, batch))
        return batch

    def weigh(self, loss: torch.Tensor, rows: float) -> torch.Tensor:
        """Scale a replica's mean loss by its share of all rows, where replicas have unequal numbers.

        The average over replicas is then the mean over all rows. Every rank must call it.
        """
        mine = torch.tensor([float(rows)], dtype=torch.float64, device=loss.device)
        return loss * (mine / self._mean(mine.clone())).to(loss.dtype)[0]

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Average a detached tensor over replicas, such as a loss to be printed."""
        return self._mean(value.detach().clone().reshape(-1)).view(value.shape)

    def _mean(self, buffer: torch.Tensor) -> torch.Tensor:
        for communicator in REPLICAS:
            if self.mesh.size(communicator) > 1:
                self.context.collectives.all_reduce(Place("mean"), communicator, buffer).wait()
        return buffer.div_(self.replicas)

    def reduce_gradients(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Average gradients over data × z, all or those of some parameters: once, after the last backward of a step."""
        sharded, serial = self.trained(parameters)
        self.context.gathers.drop()
        collectives = self.context.collectives
        # weights that are cut over z were averaged over it as their reduce-scatters came
        gradients.average(collectives, sharded, "weights", ("data",), self.bucket_bytes)
        gradients.average(collectives, serial, "serial", REPLICAS, self.bucket_bytes)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip by the 2-norm of the full gradient, no element counted twice; returns the norm."""
        sharded, serial = self.trained()
        total = gradients.norm(self.context.collectives, sharded, serial)
        gradients.clip((*sharded, *serial), total, max_norm)
        return total

    def trained(self, among: Iterable[nn.Parameter] | None = None) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Trained parameters that are cut, and all others, looked up anew: modules may be moved.

        In the order of the model, which is the same on all ranks, whatever the order of `among`.
        """
        cut = {layer.weight: None for layer in self._cut_layers()}
        every = {p: None for root in self.declared.roots for p in root.parameters()}
        wanted = {*cut, *every} if among is None else set(among)
        trained = [p for p in (*cut, *(p for p in every if p not in cut)) if p.requires_grad and p in wanted]
        return [p for p in trained if p in cut], [p for p in trained if p not in cut]

    def decays(self, parameter: nn.Parameter) -> bool:
        """Say whether weight decay applies by the usual rule: to matrices, not to vectors.

        A cut weight is flat, so a rule on `ndim` would take it for a vector.
        """
        return parameter.ndim >= 2 or any(layer.weight is parameter for layer in self._cut_layers())

    def full_state_dict(self, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
        """Gather the state of the serial model, on every rank; every rank must call it."""
        return weights.full_state(self._only(model))

    def load_full_state_dict(self, state: Mapping[str, torch.Tensor], model: nn.Module | None = None) -> None:
        """Load the state of the serial model: each rank takes its part."""
        weights.load_full_state(self._only(model), state)

    def _only(self, model: nn.Module | None) -> nn.Module:
        roots = self.declared.roots
        if model is None and len(roots) > 1:
            names = ", ".join(type(root).__name__ for root in roots)
            raise fail("model", f"several models were declared ({names}); say which")
        return roots[0] if model is None else model


def _nothing(_module: nn.Module, _inputs: Any) -> None:
    """Do nothing before a forward pass."""
