"""Weights and activations that lie beyond the device: how they come for their use, and go.

Shared by the strategies. Copies run on a rank's own streams beside compute; what is used next comes while what is there
is used. From and to drives they go through the host's memory, piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from twin.description.library import CollectiveKind
from twin.description.offload import Tier
from twin.schedule.emit import Emitter
from twin.strategies.offload import DOWN, UP

COMING: dict[Tier, CollectiveKind] = {"host": "to_device", "disk": "disk_to_device"}
GOING: dict[Tier, CollectiveKind] = {"host": "to_host", "disk": "device_to_disk"}
AHEAD = 1
"""Parts that are on their way while another is used: one more buffer of the largest's size."""


@dataclass
class Fetches:
    """What comes in one pass, in the order of its use: where it is named, and its bytes."""

    tier: Tier
    parts: Sequence[tuple[Emitter, float]]
    name: str
    _started: list[str] = field(default_factory=list)

    def use(self, number: int) -> None:
        """Hold until a part is there; what follows it is on its way from now on."""
        self._start_until(number + 1)
        self.parts[number][0].wait(self._started[number])
        self._start_until(number + 1 + AHEAD)

    def begin(self) -> None:
        """Let the first part come."""
        self._start_until(1)

    def _start_until(self, end: int) -> None:
        for emit, size in self.parts[len(self._started) : end]:
            self._started.append(emit.start(COMING[self.tier], UP, size, self.name))


@dataclass
class Leaves:
    """What goes in one pass; each is gone before the next but one begins to go."""

    tier: Tier
    name: str
    _open: list[tuple[Emitter, str]] = field(default_factory=list)

    def leave(self, emit: Emitter, size: float) -> None:
        """Let a part go."""
        if len(self._open) > AHEAD:
            self._wait()
        self._open.append((emit, emit.start(GOING[self.tier], DOWN, size, self.name)))

    def end(self) -> None:
        """Hold until all are gone."""
        while self._open:
            self._wait()

    def _wait(self) -> None:
        emit, name = self._open.pop(0)
        emit.wait(name)
