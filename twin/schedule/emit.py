"""Writing ops: a small builder that the generator's parts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twin.description.library import CollectiveKind
from twin.schedule.kernels import Kernel
from twin.schedule.ops import Compute, Op, Phase, Start, Wait, axis_of


@dataclass(slots=True)
class Emitter:
    """Appends ops to a list under a common name prefix."""

    prefix: str
    phase: Phase
    layer: int | None = None
    ops: list[Op] = field(default_factory=list)
    called: Mapping[str, str] = field(default_factory=dict)
    """What communicators are called here that the pieces of another strategy write of by their own names."""

    def under(self, part: str, *, phase: Phase | None = None, layer: int | None = None) -> Emitter:
        """Return an emitter into the same list with a longer prefix."""
        layer = self.layer if layer is None else layer
        return Emitter(f"{self.prefix}{part}/", phase or self.phase, layer, self.ops, self.called)

    def compute(self, name: str, kernel: Kernel) -> None:
        """Append device work."""
        self.ops.append(Compute(self.prefix + name, self.phase, kernel, self.layer))

    def start(self, kind: CollectiveKind, communicator: str, bytes_: float, name: str = "") -> str:
        """Append the start of a collective and return its full name."""
        communicator = self.called.get(communicator, communicator)
        full = self.prefix + (name or f"{kind}_{axis_of(communicator)}")
        self.ops.append(Start(full, self.phase, kind, communicator, float(bytes_), self.layer))
        return full

    def wait(self, full_name: str) -> None:
        """Append the wait for a collective that was started under this full name."""
        self.ops.append(Wait(full_name, self.phase, self.layer))

    def collective(self, kind: CollectiveKind, communicator: str, bytes_: float, name: str = "") -> None:
        """Append a collective that nothing overlaps: its start and its wait."""
        self.wait(self.start(kind, communicator, bytes_, name))
