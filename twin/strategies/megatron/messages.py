"""Messages between stages as ops: when they are sent, and whether anybody waits.

Megatron's 1F1B waits for every message where it is sent; one to a peer from which the next micro-batch's comes is
fused with that (`batch_isend_irecv`): both are under way at once. Interleaved did so too before messages ran beside
compute, behind each pair of a forward and a backward pass. Now it sends and goes on, as zero-bubble schedules do, and
posts a receive while the op before it runs. DeepSpeed sends a tick late: activations before the next
backward pass, gradients before the next forward pass. PyTorch's are where `orders.pytorch` puts them.

What is written between two passes is a few starts and waits, which differ from those between two others in the
micro-batches only: such share their ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from twin.schedule.emit import Emitter
from twin.schedule.ops import Copy, Op
from twin.strategies.megatron.linear import TENSOR
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.place import Message

Mail = tuple[Message, int]
"""A message of a micro-batch."""
Move = Literal["receive", "received", "send", "sent", "left"]
"""To start one, or to wait for it; what is still on its way at the end of the step is waited for as `left`."""


@dataclass
class Post:
    """Sends and receives of one rank."""

    emit: Emitter
    local: Local
    several: bool
    """Whether ranks have several chunks, which names then tell apart."""
    _coming: set[Mail] = field(default_factory=set)
    _arrived: set[Mail] = field(default_factory=set)
    _leaving: dict[Mail, None] = field(default_factory=dict)
    """In the order in which they were sent."""
    _moves: list[tuple[Move, Mail]] = field(default_factory=list)
    """What is not yet written."""
    _known: dict[tuple[tuple[Move, Message, int], ...], tuple[Op, ...]] = field(default_factory=dict)
    _variables: list[str] = field(default_factory=list)

    def post(self, mail: Mail | None) -> None:
        """Be ready for a message, once."""
        if mail is not None and mail not in self._coming:
            self._coming.add(mail)
            self._moves.append(("receive", mail))

    def take(self, mail: Mail | None) -> None:
        """Wait for a message."""
        if mail is None or mail in self._arrived:
            return
        self.post(mail)
        self._arrived.add(mail)
        self._moves.append(("received", mail))

    def send(self, mail: Mail | None) -> None:
        """Send a message and go on."""
        if mail is not None:
            self._leaving[mail] = None
            self._moves.append(("send", mail))

    def sent(self, mail: Mail | None) -> None:
        """Wait for a message that was sent."""
        if mail is not None:
            del self._leaving[mail]
            self._moves.append(("sent", mail))

    def exchange(self, sent: Sequence[Mail | None], received: Sequence[Mail | None]) -> None:
        """Start sends and receives together, and wait for all of them."""
        leaving = [mail for mail in sent if mail is not None]
        self._moves += [("send", mail) for mail in leaving]
        for mail in received:
            self.post(mail)
        self._moves += [("sent", mail) for mail in leaving]
        for mail in received:
            self.take(mail)

    def end(self) -> None:
        """Wait for what was sent."""
        self._moves += [("left", mail) for mail in self._leaving]
        self._leaving.clear()

    def known(self) -> tuple[set[Mail], set[Mail], int]:
        """Return what has been posted, taken and sent, for `later`."""
        return set(self._coming), set(self._arrived), len(self._leaving)

    def later(self, before: tuple[set[Mail], set[Mail], int], count: int, by: int) -> None:
        """Note that what was done since then was one of so many rounds, each of later micro-batches."""
        coming, arrived, left = before
        last = (count - 1) * by
        for known, old in ((self._coming, coming), (self._arrived, arrived)):
            known |= {(message, micro + last) for message, micro in known - old}
        leaving = list(self._leaving)[left:]
        for more in range(by, last + 1, by):
            self._leaving.update({(message, micro + more): None for message, micro in leaving})

    def write(self) -> None:
        """Write what has come together since the last time."""
        if not self._moves:
            return
        micros: dict[int, int] = {}
        key = tuple([(move, message, micros.setdefault(micro, len(micros))) for move, (message, micro) in self._moves])
        self._moves.clear()
        body = self._known.get(key)
        if body is None:
            body = self._known[key] = self._body(key)
            self._variables += [_variable(number) for number in range(len(self._variables), len(micros))]
        self.emit.ops.append(Copy(body, dict(zip(self._variables, micros, strict=False))))

    def _body(self, key: Sequence[tuple[Move, Message, int]]) -> tuple[Op, ...]:
        """Write it with the micro-batches left open."""
        ops: list[Op] = []
        for move, message, number in key:
            emit = Emitter("messages/", "fwd" if message.forward or move == "left" else "bwd", ops=ops)
            place = message.receiver if move in ("receive", "received") else message.sender
            kind = "F" if message.forward else "B"
            where = f"micro{{{_variable(number)}}}/{kind}{place[1] if self.several else ''}"
            if move in ("send", "receive"):
                emit.start(move, message.communicator, self.local.message_bytes, f"{where}/{move}")
                continue
            emit.wait(f"messages/{where}/{'receive' if move == 'received' else 'send'}")
            if move == "received" and self.local.job.splits_messages:
                emit.collective("all_gather", TENSOR, self.local.whole_bytes, f"{where}/gather")
        return tuple(ops)


def _variable(number: int) -> str:
    """Name what stands for one of the micro-batches of which messages are written together."""
    return f"micro{number or ''}"
