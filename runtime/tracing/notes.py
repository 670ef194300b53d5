"""What one rank notes of chosen steps."""

from __future__ import annotations

import time
from typing import Any

from runtime.step.context import Context
from runtime.tracing.listener import DeviceListener, HostListener, Note


class StepNotes:
    """Listens during steps: `before` one, when it has `loaded` its samples, and `after` it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.notes: list[Note] = []
        self.loading_ns: dict[int, int] = {}
        """By step."""
        self._listener: HostListener | DeviceListener | None = None
        self._began_ns = 0
        self._streams: dict[str, Any] = {}

    def before(self, step: int) -> bool:
        """Begin to listen; false if somebody else does."""
        if self.context.ops.listener is not None:
            return False
        # a run that went back to a checkpoint does steps again
        self.notes = [note for note in self.notes if note.step < step]
        on_device = self.context.device.type == "cuda"
        self._listener = DeviceListener(step, self._streams) if on_device else HostListener(step)
        self.context.ops.listener = self._listener
        self._began_ns = time.monotonic_ns()
        return True

    def loaded(self, step: int) -> None:
        """The step's samples are there; what was done since `before` was to load them."""
        if self._listener is not None:
            self.loading_ns[step] = time.monotonic_ns() - self._began_ns

    def after(self) -> None:
        """Keep what was heard."""
        if self._listener is not None:
            self.notes += self._listener.finish()
            self._listener = self.context.ops.listener = None

    def forget(self) -> None:
        """Begin anew."""
        self.notes, self.loading_ns = [], {}
