"""The keys of a job with plain data parallelism, and what it does not have."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from twin.description.attention import UNFUSED
from twin.description.grid import GridSpec
from twin.description.job import Job
from twin.description.model import Model, Positive
from twin.description.problems import Problem


class Grid(GridSpec):
    """One axis: every rank holds the whole model, and works on sequences of its own."""

    batch_axes: ClassVar[tuple[str, ...]] = ("data",)
    streams: ClassVar[tuple[str, ...]] = ("data",)

    data: Positive = 1
    """Replicas of the model."""


class DdpJob(Job):
    """A job whose ranks are replicas."""

    strategy: Literal["ddp"] = "ddp"
    """PyTorch's DistributedDataParallel."""
    grid: Grid | Literal["auto"] = "auto"
    recompute: Literal[False] = False
    """Every activation is kept for the backward pass."""
    bucket_bytes: Annotated[float, Field(gt=0)] = 25 * 2.0**20
    """Least size of a bucket of gradients, in compute precision, that is reduced at once (DDP's `bucket_cap_mb`)."""


def check(job: DdpJob) -> list[Problem]:
    """Return what a job asks for that plain data parallelism does not have."""
    problems = _beyond(job.model)
    if job.dropout:
        problems.append(Problem("dropout", "ddp has none; set 0, or use strategy: four_d", job.dropout))
    if job.attention in UNFUSED:
        problems.append(Problem("attention", "ddp has flash only; or use strategy: four_d", job.attention))
    if job.lora is not None:
        problems.append(Problem("lora", "ddp trains every weight; leave it out, or use strategy: four_d"))
    if job.document_mask:
        problems.append(Problem("document_mask", "ddp has none; set false, or use strategy: four_d", True))
    if job.fused_elementwise:
        problems.append(Problem("fused_elementwise", "ddp has none; set false, or use strategy: four_d", True))
    return problems


def _beyond(model: Model) -> list[Problem]:
    """Return what its model does not have."""
    lacks = {
        "qk_norm": model.qk_norm,
        "residual": model.residual == "parallel",
        "tied_embeddings": model.tied_embeddings,
        "max_positions": model.positions == "learned" and model.position_rows > model.sequence,
    }
    remedy = "ddp has it not; use strategy: four_d"
    return [Problem(f"model.{key}", remedy, getattr(model, key)) for key, lacking in lacks.items() if lacking]
