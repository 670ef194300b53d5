"""Messages between stages under the twin's names: sends and receives of `torch.distributed.pipelining`.

Its stages say what a schedule is to send, as operations that are started and waited for later; here each gets a name
for when that happens. Where a backend starts several as one (NCCL) they are left as they are, and have none; who
looks for numbers that are not finite is shown what came all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from runtime.parallel.collectives import Handle, Together
from runtime.parallel.ops import Op
from runtime.strategies.megatron.context import MegatronContext
from twin.strategies.megatron.place import Pipeline

Way = Literal["send", "receive"]


class Messages:
    """The messages of one rank."""

    def __init__(self, context: MegatronContext) -> None:
        self.context = context
        self._pipeline = Pipeline(context.job)
        self._rank = context.mesh.place("pipeline")

    @property
    def are_named(self) -> bool:
        """Whether they are started one by one."""
        return self.context.device.type != "cuda"

    def named(self, ops: list[dist.P2POp], chunk: int, micro: int, way: Way, *, forward: bool) -> list[dist.P2POp]:
        """Give names to what a chunk sends or receives of a micro-batch: an activation, or a gradient."""
        if not self.are_named:
            return ops
        for each in ops:
            each.op = Named(self.context, self._op(chunk, micro, way, each.tensor, forward=forward), each)
        return ops

    def received(self, came: Sequence[torch.Tensor | None], chunk: int, micro: int, *, forward: bool) -> None:
        """Show what came to a listener that looks at numbers, where it has not heard of the message by its name."""
        look = getattr(self.context.ops.listener, "received", None)
        if look is None or self.are_named or self._pipeline.incoming(self._rank, chunk, forward=forward) is None:
            return  # what a rank's own stages hand on is no message
        for each in came:
            if each is not None:
                look(self._op(chunk, micro, "receive", each, forward=forward), each)

    def _op(self, chunk: int, micro: int, way: Way, tensor: torch.Tensor, *, forward: bool) -> Op:
        of = self._pipeline.outgoing if way == "send" else self._pipeline.incoming
        message = of(self._rank, chunk, forward=forward)
        assert message is not None
        several = f"{chunk}" if self.context.job.chunks > 1 else ""
        name = f"messages/micro{micro}/{'F' if forward else 'B'}{several}/{way}"
        phase: Literal["fwd", "bwd"] = "fwd" if forward else "bwd"
        # as in the twin's tables: a message stands outside of micro-steps
        size = float(tensor.nbytes)
        return Op(name, phase, None, None, sent_bytes=size, kind=way, communicator=message.communicator)


class Named:
    """Starts a send or a receive under its name; in place of `isend` and `irecv`."""

    def __init__(self, context: MegatronContext, op: Op, message: dist.P2POp) -> None:
        self.context, self.op, self.message = context, op, message
        self._run: Callable[..., Any] = message.op
        self.__name__ = message.op.__name__

    def __call__(self, tensor: torch.Tensor, **_where: Any) -> Sent:
        """Start it."""
        message = self.message
        peer = {"group_dst" if self.op.kind == "send" else "group_src": message.group_peer}

        def launch() -> Together:
            return Together([self._run(tensor, group=message.group, tag=message.tag, **peer)])

        return Sent(self.context.collectives.foreign(self.op, launch, lambda: tensor))


@dataclass
class Sent:
    """A message on its way, as schedules wait for it."""

    handle: Handle | None

    def wait(self) -> None:
        """Wait for it, once."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.wait()
