"""Stages and schedules of `torch.distributed.pipelining`: which pass runs when is PyTorch's, what runs has names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from runtime.model.plain import PlainGPT
from runtime.parallel.collectives import CollectiveError
from runtime.step.trainee import MicroBatch
from runtime.strategies.megatron.context import MegatronContext
from runtime.strategies.megatron.gradients import Sums
from runtime.strategies.megatron.messages import Messages
from twin.strategies.megatron.orders import Kind
from twin.strategies.megatron.place import Stage as Place

SCHEDULES: dict[str, type[Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb_h1": ScheduleInterleavedZeroBubble,
    "zb_v": ScheduleZBVZeroBubble,
    "dualpipe_v": ScheduleDualPipeV,
}
"""PyTorch's, by the names of the job's key."""
OF_ONE_STAGE = ("gpipe", "1f1b")


@dataclass
class Work:
    """What the stages of a rank work on in a step."""

    batch: Sequence[MicroBatch] = ()
    latest: int = 0
    """The micro-batch whose forward pass the last stage ran last."""


class Stage(PipelineStage):
    """A stage that knows what it does under which name."""

    def __init__(
        self,
        context: MegatronContext,
        model: PlainGPT,
        place: Place,
        work: Work,
        sums: Sums,
        around: Callable[[PlainGPT, int], AbstractContextManager[object]],
    ) -> None:
        self.context, self.model, self.place, self.work, self._sums = context, model, place, work, sums
        self._around = around
        self._messages = Messages(context)
        super().__init__(
            model,
            place.number,
            context.job.stages,
            context.device,
            input_args=self._shape(model, given=False),
            output_args=self._shape(model, given=True),
            group=context.mesh.groups["pipeline"],
            dw_builder=sums.later,
        )

    def _shape(self, model: PlainGPT, *, given: bool) -> torch.Tensor:
        """Return what a pass takes, or gives, without memory."""
        context, job = self.context, self.context.job
        if model.span.first and not given:
            length = job.model.sequence // job.concrete_grid.context
            return torch.empty(context.sequences, length, dtype=torch.int64, device="meta")
        rows, width = context.sequences * job.model.sequence // job.concrete_grid.context, job.model.hidden
        if model.span.last and given:
            width = -(-job.model.vocabulary // context.ranks.tensor)
        elif context.scatters:
            rows //= context.ranks.tensor
        return torch.empty(rows, width, dtype=context.compute_type, device="meta", requires_grad=True)

    def _acting(self, kind: Kind, micro: int) -> AbstractContextManager[None]:
        self.context.first_sequence = self.work.batch[micro].first_sequence
        return self.context.acting(kind, self.place.chunk, micro)

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: tuple[Any, ...], kwargs: Any = None, save_forward_output: bool = True
    ) -> Any:
        """Run a forward pass."""
        del kwargs
        if self.is_last:
            self.work.latest = fwd_chunk_id
        with self._acting("F", fwd_chunk_id):
            sequences = {"sequences": self.context.sequences}
            with plainly():
                return super().forward_one_chunk(fwd_chunk_id, args, sequences, save_forward_output)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run a backward pass, or the half of it that gives input gradients."""
        with self._acting("B" if full_backward else "I", bwd_chunk_id), plainly():
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._sums.collect(self.model)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run the half that gives weight gradients."""
        with self._acting("W", bwd_chunk_id), plainly():
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Reduce the stage's gradients, which are complete."""
        with self._around(self.model, self.place.number):
            super().perform_reduce_grad(grad_scale_factor)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what is to be received before a forward pass."""
        found = super().get_fwd_recv_ops(fwd_chunk_id)
        return self._messages.named(found, self.place.chunk, fwd_chunk_id, "receive", forward=True)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what is to be received before a backward pass."""
        found = super().get_bwd_recv_ops(bwd_chunk_id)
        return self._messages.named(found, self.place.chunk, bwd_chunk_id, "receive", forward=False)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what is to be sent behind a forward pass."""
        found = super().get_fwd_send_ops(fwd_chunk_id)
        return self._messages.named(found, self.place.chunk, fwd_chunk_id, "send", forward=True)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what is to be sent behind a backward pass."""
        found = super().get_bwd_send_ops(bwd_chunk_id)
        return self._messages.named(found, self.place.chunk, bwd_chunk_id, "send", forward=False)

    # PyTorch's own names: where they are others, numbers that came are looked at in what is made of them
    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        found = super()._retrieve_recv_activations(fwd_chunk_id)
        self._messages.received(found, self.place.chunk, fwd_chunk_id, forward=True)
        return found

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        found = super()._retrieve_recv_grads(bwd_chunk_id)
        self._messages.received(found, self.place.chunk, bwd_chunk_id, forward=False)
        return found

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Any = None) -> Any:
        if self.context.initialised:
            with self._meeting():
                return super()._warmup_forward_vote(has_backward, received_acc)
        return _Yes()  # what is only recorded has nobody to vote with

    def _warmup_backward_result(self, received_result: Any = None) -> Any:
        if self.context.initialised:
            with self._meeting():
                return super()._warmup_backward_result(received_result)
        return _Yes()

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Name what PyTorch sends between neighbouring stages before the first step, outside of named messages."""
        try:
            yield
        except RuntimeError as error:
            where, reason = self.context.mesh.where(), str(error).strip().split("\n")[0]
            raise CollectiveError(
                f"{where}: stage {self.place.number} met its neighbours before the first step, which failed: "
                f"a peer has probably died ({reason})"
            ) from error


@contextmanager
def plainly() -> Iterator[None]:
    """Raise what went wrong in a pass, such as a peer that has died: PyTorch's own words about it hide that."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, RuntimeError):
            raise error.__cause__ from None
        raise


class _Yes:
    """A vote that shapes are known, where tensors have no numbers."""

    def item(self) -> int:
        """Return the vote."""
        return 1


def schedule_of(stages: Sequence[Stage], loss: Callable[..., torch.Tensor]) -> Any:
    """Make PyTorch's schedule of a rank's stages; gradients are sums, and are not divided by micro-batches."""
    job = stages[0].context.job
    kind = SCHEDULES[job.schedule]
    if job.schedule in OF_ONE_STAGE:
        return kind(stages[0], job.micro_steps, loss, scale_grads=False)
    # on AMD a receive that waits may hold up other work of the device, PyTorch says
    later: Any = {"defer_pp_recv": True} if torch.version.hip else {}
    return kind(list(stages), job.micro_steps, loss, scale_grads=False, **later)
