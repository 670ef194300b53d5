"""A rank's own copies to its host and back, updates by the host, and what its drives do: ops of a step like others.

They have the names, streams and bytes that the twin gives them (`twin.strategies.held`, `twin.strategies.fetch`), and
are waited for where it waits. On a CPU, whose memory is the host's, the twin has none, and what is done here in their
place has no name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from runtime.parallel.ops import Op, Ops, Place
from twin.description.library import CollectiveKind
from twin.schedule.ops import Phase

Work = Any
"""What is waited for: torch.cuda has no types."""


@dataclass(frozen=True)
class Passed:
    """A point on a stream of a GPU."""

    event: Any

    def wait(self) -> None:
        """Let the current stream wait until it is passed."""
        torch.cuda.current_stream().wait_event(self.event)


@dataclass(frozen=True)
class Done:
    """Something that is over when it has been started."""

    def wait(self) -> None:
        """Go on at once."""


@dataclass
class Copy:
    """One that is under way, or over."""

    op: Op | None
    """None where it has no name."""
    _ops: Ops
    _work: Work

    def wait(self) -> None:
        """Let the device's work go on once it is over; call it once."""
        if self.op is None or self._ops.listener is None:
            self._work.wait()
            return
        self._ops.listener.wait(self.op, self._work.wait)

    def land(self) -> None:
        """Let the host go on once it is over, and the device's work too; call it once, in place of `wait`."""
        self.wait()
        event = getattr(self._work, "event", None)
        if event is not None:
            event.synchronize()


@dataclass(frozen=True)
class Copies:
    """Starts them, under names if they have any."""

    ops: Ops
    named: bool

    def start(
        self,
        place: Place,
        name: str,
        kind: CollectiveKind,
        stream: str,
        size_bytes: float,
        run: Callable[[], Work],
        *,
        phase: Phase | None = None,
    ) -> Copy:
        """Start one that moves so many bytes; `run` does, and returns what is waited for."""
        listener = self.ops.listener
        if listener is None or not self.named:
            return Copy(None, self.ops, run())
        op = self.ops.op(place, name, phase, sent_bytes=float(size_bytes), kind=kind, communicator=stream)
        return Copy(op, self.ops, listener.start(op, run))
