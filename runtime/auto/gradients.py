"""Gradients after the backward pass: averaged over replicas in flat buckets, clipped, counted once.

* Ranks that differ in data or z are replicas: they saw other rows. Ranks that differ in x or y
  saw the same rows, so serial parameters have the same gradient there already.
* A gradient that no replica has stays None, as it would be in serial training.
* Gradients that are the same everywhere are their own average: what was averaged before, and has grown since, is
  averaged rightly once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import torch
from torch import nn

from runtime.parallel.collectives import Collectives
from runtime.parallel.mesh import Communicator
from runtime.parallel.ops import Place
from twin.description.problems import fail

REDUCE = Place("gradients")
EPSILON = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to the norm."""


def average(
    collectives: Collectives,
    parameters: Sequence[nn.Parameter],
    name: str,
    communicators: Sequence[Communicator],
    bucket_bytes: int,
) -> None:
    """Average gradients over communicators, in place."""
    over = [c for c in communicators if collectives.mesh.size(c) > 1]
    if not over:
        return
    scale = 1.0 / prod(collectives.mesh.size(c) for c in over)
    for index, bucket in enumerate(buckets(parameters, bucket_bytes)):
        flat = _packed(bucket).mul_(scale)
        for communicator in over:
            collectives.all_reduce(REDUCE, communicator, flat, name=f"{name}{index}", phase="reduce").wait()
        _unpack(flat, bucket)


def buckets(parameters: Iterable[nn.Parameter], most_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Group parameters of one type and device up to a size; a larger one is alone."""
    open_: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        bucket = open_.setdefault((parameter.dtype, parameter.device), [])
        if bucket and sum(p.nbytes for p in bucket) + parameter.nbytes > most_bytes:
            yield list(bucket)
            bucket.clear()
        bucket.append(parameter)
    yield from open_.values()


def _packed(bucket: Sequence[nn.Parameter]) -> torch.Tensor:
    """Lay gradients one after the other, behind a 0 or 1 for each: whether there is one."""
    for parameter in bucket:
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise fail(
                "sparse", "gradients of sparse layers are not reduced; make the embedding with sparse=False", True
            )
    here = bucket[0].new_tensor([float(p.grad is not None) for p in bucket])
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
    return torch.cat([here, *(g.detach().reshape(-1) for g in gradients)])


def _unpack(flat: torch.Tensor, bucket: Sequence[nn.Parameter]) -> None:
    came, begin = flat[: len(bucket)], len(bucket)
    for index, parameter in enumerate(bucket):
        part = flat[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()
        if parameter.grad is not None:
            parameter.grad.copy_(part)
        elif came[index] > 0:  # a device is asked only about gradients that are missing
            parameter.grad = part.clone()


def norm(collectives: Collectives, sharded: Sequence[nn.Parameter], serial: Sequence[nn.Parameter]) -> torch.Tensor:
    """Return the 2-norm of the full gradient, a scalar tensor, equal on all ranks."""
    if not (sharded or serial):
        return torch.zeros(())
    total = _squares(sharded, [*sharded, *serial][0])
    for communicator in ("x", "y", "z_scatter"):
        if sharded and collectives.mesh.size(communicator) > 1:
            collectives.all_reduce(REDUCE, communicator, total, name="norm", phase="optimizer").wait()
    return (total + _squares(serial, total)).sqrt()[0]


def _squares(parameters: Sequence[nn.Parameter], like: torch.Tensor) -> torch.Tensor:
    total = like.new_zeros(1, dtype=torch.promote_types(like.dtype, torch.float32))
    for parameter in parameters:
        if parameter.grad is not None:
            total += torch.linalg.vector_norm(parameter.grad, dtype=total.dtype) ** 2
    return total


def clip(parameters: Iterable[nn.Parameter], total: torch.Tensor, most: float) -> None:
    """Scale gradients so that a norm of `total` becomes at most `most`."""
    factor = torch.clamp(most / (total + EPSILON), max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor.to(parameter.grad.dtype))
