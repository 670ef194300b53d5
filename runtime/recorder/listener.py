"""Writes down the ops of a running step in the twin's op language."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from runtime.parallel.ops import Op
from runtime.recorder.launches import Launches
from twin.schedule.kernels import Memory
from twin.schedule.ops import Compute, Schedule, Simple, Start, Wait

T = TypeVar("T")


@dataclass
class ScheduleListener:
    """A `runtime.parallel.ops.Listener` that keeps every op.

    An op that comes again under its name (a layer used twice) gets a number: `…/gemm#2`.
    """

    launches: Launches
    ops: list[Simple] = field(default_factory=list)
    in_autograd: bool = False
    inside: bool = False
    """True if what runs now is part of an op that has a name."""
    _times: dict[str, int] = field(default_factory=dict)
    _started: dict[int, tuple[Op, str]] = field(default_factory=dict)
    """Names of collectives in flight by the identity of their op, which is kept alive here."""

    @property
    def schedule(self) -> Schedule:
        """What was recorded."""
        return Schedule(tuple(self.ops))

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work, and count the kernels of what is bounded by memory."""
        before = self.launches.count
        result = self._run(run)
        kernel = op.kernel
        assert kernel is not None, f"{op.name} is not described"
        if isinstance(kernel, Memory):
            kernel = replace(kernel, kernels=max(1, self.launches.count - before))
        self.ops.append(Compute(self.unique(op.name), op.phase, kernel, op.layer))
        return result

    def start(self, op: Op, run: Callable[[], T]) -> T:
        """Start a collective."""
        assert op.kind is not None
        assert op.communicator is not None
        name = self.unique(op.name)
        self._started[id(op)] = op, name
        self.ops.append(Start(name, op.phase, op.kind, op.communicator, op.bytes, op.layer))
        return self._run(run)

    def wait(self, op: Op, run: Callable[[], T]) -> T:
        """Wait for a collective."""
        _, name = self._started.pop(id(op))
        self.ops.append(Wait(name, op.phase, op.layer))
        return self._run(run)

    def unique(self, name: str) -> str:
        """Number a name that was used before; braces mean something in the op language."""
        name = name.replace("{", "(").replace("}", ")")
        times = self._times[name] = self._times.get(name, 0) + 1
        return name if times == 1 else f"{name}#{times}"

    def _run(self, run: Callable[[], T]) -> T:
        before, self.inside = self.inside, True
        try:
            return run()
        finally:
            self.inside = before
