"""Sharded data parallelism on PyTorch's FSDP2: a plain model, cut unit by unit over all ranks, or HSDP.

* `units`: what travels together, and where shards lie; `gathers`, `reductions`: FSDP2's calls by the named collectives.
* `trainee`: one training step; `refusals`: what a job may ask of the twin that PyTorch does not do.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from runtime.model.plain import PlainGPT
from runtime.parallel.mesh import Mesh
from runtime.step.optimizer import FUSED_ADAM, MakeAdam, Optimizer
from runtime.strategies.fsdp.context import FsdpContext
from runtime.strategies.fsdp.refusals import refusals
from runtime.strategies.fsdp.trainee import FsdpTrainee
from runtime.strategies.fsdp.units import cut, made_on_meta, units_of
from twin.description.train import Adam
from twin.strategies.fsdp.job import FsdpJob

__all__ = ["RECORDED_ON", "refusals", "trainee_of"]

RECORDED_ON = "fake"
"""FSDP2 knows no meta device, but makes do with tensors of the CPU that have no memory."""


def trainee_of(
    job: FsdpJob,
    mesh: Mesh,
    device: torch.device,
    settings: Adam,
    *,
    compile_: bool = False,
    initialised: bool = True,
    make_adam: MakeAdam = FUSED_ADAM,
) -> FsdpTrainee:
    """Make the model of a job, with its optimizer, on one rank."""
    context = FsdpContext.of_job(job, mesh, device, compile_=compile_, initialised=initialised)
    return trainee_in(context, settings, make_adam)


def trainee_in(context: FsdpContext, settings: Adam, make_adam: MakeAdam = FUSED_ADAM) -> FsdpTrainee:
    """Make them in a context that is there."""
    if not context.sharded:
        model = PlainGPT(context)
        units, shards = units_of(model, context.job), None
    else:
        model = PlainGPT(context, made_on_meta)
        units = units_of(model, context.job)
        policy = MixedPrecisionPolicy(context.compute_type, context.reduce_type, cast_forward_inputs=False)
        shards = cut(model, units, device_mesh(context), policy)
    return FsdpTrainee(context, model, Optimizer(context, settings, make_adam), units, shards)


def device_mesh(context: FsdpContext) -> DeviceMesh:
    """Return the ranks that share weights, as PyTorch has it: of replicas × weights the inner dimension."""
    mesh, groups, kind = context.mesh, context.groups, context.device.type
    gather = mesh.groups[groups.gather]
    with unset_fake_temporarily():  # it reads numbers of ranks, also where a recorder's tensors have none
        if context.grid.data == 1:
            return DeviceMesh.from_group(gather, kind, mesh_dim_names=("weights",))
        ranks = torch.arange(mesh.grid.ranks).view(context.grid.data, context.grid.weights)
        both = [mesh.groups[groups.data], gather]
        return DeviceMesh.from_group(both, kind, mesh=ranks, mesh_dim_names=("data", "weights"))["weights"]
