"""Messages between stages as ops: when they are sent, and whether anybody waits.

Megatron's 1F1B waits for every message where it is sent; one to a peer from which the next micro-batch's comes is
fused with that (`batch_isend_irecv`): both are under way at once. Interleaved did so too before messages ran beside
compute, behind each pair of a forward and a backward pass. Now it sends and goes on, as zero-bubble schedules do, and
posts a receive while the op before it runs. DeepSpeed sends a tick late: activations before the next
backward pass, gradients before the next forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from twin.schedule.emit import Emitter
from twin.strategies.megatron.linear import TENSOR
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.place import Message


@dataclass
class Post:
    """Sends and receives of one rank."""

    emit: Emitter
    local: Local
    several: bool
    """Whether ranks have several chunks, which names then tell apart."""
    _coming: dict[Message, str] = field(default_factory=dict)
    _arrived: set[Message] = field(default_factory=set)
    _leaving: list[str] = field(default_factory=list)

    def post(self, message: Message | None) -> None:
        """Be ready for a message, once."""
        if message is not None and message not in self._coming:
            name = f"{self._where(message, message.receiver[1])}/receive"
            self._coming[message] = self._under(message).start(
                "receive", message.communicator, self.local.message_bytes, name
            )

    def take(self, message: Message | None) -> None:
        """Wait for a message."""
        if message is None or message in self._arrived:
            return
        self.post(message)
        self._arrived.add(message)
        under = self._under(message)
        under.wait(self._coming[message])
        if self.local.job.splits_messages:
            name = f"{self._where(message, message.receiver[1])}/gather"
            under.collective("all_gather", TENSOR, self.local.whole_bytes, name)

    def send(self, message: Message | None) -> None:
        """Send a message and go on."""
        if message is not None:
            self._leaving.append(self._start(message))

    def exchange(self, sent: Sequence[Message | None], received: Sequence[Message | None]) -> None:
        """Start sends and receives together, and wait for all of them."""
        leaving = [(message, self._start(message)) for message in sent if message is not None]
        for message in received:
            self.post(message)
        for message, name in leaving:
            self._under(message).wait(name)
        for message in received:
            self.take(message)

    def _start(self, message: Message) -> str:
        name = f"{self._where(message, message.sender[1])}/send"
        return self._under(message).start("send", message.communicator, self.local.message_bytes, name)

    def end(self) -> None:
        """Wait for what was sent."""
        for name in self._leaving:
            self.emit.wait(name)
        self._leaving.clear()

    def _under(self, message: Message) -> Emitter:
        return self.emit.under("messages", phase="fwd" if message.forward else "bwd")

    def _where(self, message: Message, chunk: int) -> str:
        kind = "F" if message.forward else "B"
        return f"micro{message.micro}/{kind}{chunk if self.several else ''}"
