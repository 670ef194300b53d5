"""One training step with PyTorch's DistributedDataParallel.

DDP's communication hook hands every bucket of gradients to the named collectives and says at once that it
is done; the step waits for them, by name, after the backward pass. So buckets are traced and recorded
like every other collective, and reduced beside the backward pass as DDP does it.

DDP adds the gradients of micro-steps up in their own type. Of 16 bits that loses what comes late (a tenth of the norm
after a thousand micro-steps), so that here they are added up in fp32 beside it; buckets travel in 16 bits as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket

from runtime.model.backward import backward_from
from runtime.model.context import ModelContext
from runtime.model.cross_entropy import cross_entropy
from runtime.model.plain import PlainGPT
from runtime.parallel.collectives import Handle
from runtime.parallel.ops import Place
from runtime.step.optimizer import Optimizer
from runtime.step.trainee import MicroBatch, Trainee
from runtime.weights.store import Parameter
from twin.schedule.kernels import Memory
from twin.strategies.ddp.job import DdpJob
from twin.strategies.ddp.schedule import added_bytes, collected_bytes, sums_apart

REDUCE = Place("")
MEBIBYTE = 2.0**20


@dataclass
class Buckets:
    """Buckets of gradients in flight, and what is left to do when the backward pass is over."""

    context: ModelContext
    model: PlainGPT
    handles: list[Handle] = field(default_factory=list)

    @property
    def sums_apart(self) -> bool:
        """Whether micro-steps are added up in fp32 beside gradients of 16 bits, which would lose the later ones."""
        return sums_apart(self.context.job.element_bytes, self.context.job.micro_steps)

    def add(self, *, first: bool) -> None:
        """Add a micro-step's gradients to their sums."""
        size = float(self.context.store.used * added_bytes(self.context.job.element_bytes, first=first))
        self.context.ops.compute(
            REDUCE,
            "accumulate",
            lambda: self._add(first=first),
            lambda: Memory(size, work="accumulate"),
            phase="reduce",
        )

    def _add(self, *, first: bool) -> None:
        for parameter, found in self._gradients():
            total = parameter.gradient
            if first:
                total.copy_(found.reshape(-1))
            else:
                total.add_(found.reshape(-1))
            found.zero_()

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start summing a bucket over all replicas, in place: what DDP calls for each."""
        place, buffer = Place(f"bucket{len(self.handles)}"), bucket.buffer()
        if self.sums_apart:
            for weight, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                gradient.add_(self._sum_of[weight].view_as(gradient))  # in fp32, and rounded once
        self.handles.append(self.context.collectives.all_reduce(place, "data", buffer, phase="bwd"))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    @cached_property
    def _sum_of(self) -> dict[torch.Tensor, torch.Tensor]:
        """Sums in fp32 by the parameters that DDP knows."""
        store = self.context.store.parameters
        return {self.model.get_parameter(name): parameter.gradient for name, parameter in store.items()}

    def _gradients(self) -> Iterator[tuple[Parameter, torch.Tensor]]:
        """Yield parameters with what autograd has summed."""
        for name, parameter in self.context.store.parameters.items():
            found = self.model.get_parameter(name).grad
            assert found is not None, f"{name} has no gradient"
            yield parameter, found

    def finish(self) -> None:
        """Wait for all buckets, collect the gradients in fp32, and sum the loss."""
        context = self.context
        for handle in self.handles:
            handle.wait()
        self.handles.clear()
        alone = context.mesh.size("data") == 1
        each = collected_bytes(context.job.element_bytes, context.job.micro_steps, alone=alone)
        size = float(context.store.used * each)
        context.ops.compute(REDUCE, "collect", self._collect, lambda: Memory(size, work="collect"), phase="reduce")
        if not alone:
            loss = context.store.loss
            context.collectives.all_reduce(REDUCE, "data", loss, name="loss", phase="reduce").wait()

    def _collect(self) -> None:
        """Put what is reduced where the optimizer reads it; one rank alone adds its last micro-step here."""
        self._add(first=not self.sums_apart or self.context.mesh.size("data") > 1)


class DdpTrainee(Trainee):
    """A serial model, its gradients reduced by DDP."""

    warm_up_steps = 1  # DDP orders its buckets anew after the first step

    context: ModelContext
    model: PlainGPT

    def __init__(self, context: ModelContext, model: PlainGPT, optimizer: Optimizer) -> None:
        self.context, self.model, self.optimizer = context, model, optimizer
        self.buckets = Buckets(context, model)
        job = context.job
        assert isinstance(job, DdpJob)
        self.parallel: nn.parallel.DistributedDataParallel | None = None
        if context.mesh.size("data") > 1:
            self.parallel = nn.parallel.DistributedDataParallel(
                model,
                process_group=context.mesh.groups["data"],
                bucket_cap_mb=job.bucket_bytes / MEBIBYTE,
                gradient_as_bucket_view=True,
                forward_sync_buffers=False,
                init_sync=False,  # weights are numbers by address: equal everywhere already
            )
            # DDP refuses hooks whose annotations are text, as they are in this module
            self.parallel.register_comm_hook(self.buckets, lambda state, bucket: state.reduce(bucket))

    def backward(self, batch: Sequence[MicroBatch]) -> Buckets:
        """Run all micro-steps; the last one's backward pass reduces what all have summed."""
        context, store = self.context, self.context.store
        store.begin_step()
        for index, micro in enumerate(batch):
            context.first_sequence = micro.first_sequence
            last = index == len(batch) - 1
            quiet = nullcontext() if last or self.parallel is None else self.parallel.no_sync()
            with context.ops.micro_step(index, tuple(micro.tokens.shape)), quiet:
                logits = (self.parallel or self.model)(micro.tokens)
                targets, weights = micro.targets.reshape(-1), micro.weights.reshape(-1)
                loss, gradient = cross_entropy(context, logits, targets, weights, with_gradient=True)
                assert gradient is not None
                held = [logits, gradient]
                del logits, gradient
                backward_from(held)
                if not last and self.buckets.sums_apart:
                    self.buckets.add(first=index == 0)
                store.loss.add_(loss)
        return self.buckets

    @torch.no_grad()
    def loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the weighted sum of this replica's token losses; of jobs with a document mask there are none here."""
        assert documents is None
        logits = self.model(tokens)
        found, _ = cross_entropy(self.context, logits, targets.reshape(-1), weights.reshape(-1), with_gradient=False)
        return found

    def last_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the next tokens' logits."""
        length = tokens.shape[1]
        logits: torch.Tensor = self.model(tokens)[length - 1 :: length]
        return logits.float().cpu()

    def holding(self) -> AbstractContextManager[None]:
        """Nothing is gathered: every rank has the whole model."""
        return nullcontext()
