"""One training step with PyTorch's DistributedDataParallel.

DDP's communication hook hands every bucket of gradients to the named collectives and says at once that it
is done; the step waits for them, by name, after the backward pass. So buckets are traced and recorded
like every other collective, and reduced beside the backward pass as DDP does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn

from runtime.model.backward import backward_from
from runtime.model.context import ModelContext
from runtime.model.cross_entropy import cross_entropy
from runtime.model.plain import PlainGPT
from runtime.parallel.collectives import Handle
from runtime.parallel.ops import Place
from runtime.step.optimizer import Optimizer
from runtime.step.trainee import MicroBatch, Trainee
from twin.schedule.kernels import Memory
from twin.strategies.ddp.job import DdpJob
from twin.strategies.ddp.schedule import collected_bytes

REDUCE = Place("")
MEBIBYTE = 2.0**20


@dataclass
class Buckets:
    """Buckets of gradients in flight, and what is left to do when the backward pass is over."""

    context: ModelContext
    model: PlainGPT
    handles: list[Handle] = field(default_factory=list)

    def reduce(self, bucket: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Start summing a bucket over all replicas, in place: what DDP calls for each."""
        place = Place(f"bucket{len(self.handles)}")
        self.handles.append(self.context.collectives.all_reduce(place, "data", bucket, phase="bwd"))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket)
        return done

    def finish(self) -> None:
        """Wait for all buckets, collect the gradients in fp32, and sum the loss."""
        context = self.context
        for handle in self.handles:
            handle.wait()
        self.handles.clear()
        each = collected_bytes(context.job.element_bytes, context.job.micro_steps)
        size = float(context.store.used * each)
        context.ops.compute(REDUCE, "collect", self._collect, lambda: Memory(size, work="collect"), phase="reduce")
        if context.mesh.size("data") > 1:
            loss = context.store.loss
            context.collectives.all_reduce(REDUCE, "data", loss, name="loss", phase="reduce").wait()

    def _collect(self) -> None:
        for name, parameter in self.context.store.parameters.items():
            found = self.model.get_parameter(name).grad
            assert found is not None, f"{name} has no gradient"
            parameter.gradient.copy_(found.reshape(-1))
            found.zero_()


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
            self.parallel.register_comm_hook(self.buckets, lambda state, bucket: state.reduce(bucket.buffer()))

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
