"""The ranks that measure together: who is where, and how they begin at the same moment.

A barrier lets ranks go one after another, later by more than a small collective takes. So rank 0 names a
moment a little ahead, and each rank sleeps until its own clock shows it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from runtime.launch.environment import Process
from runtime.tracing.clock import ClockOffset, align

HEADROOM_SECONDS = 0.02
"""Time ahead at which rank 0 names a moment: longer than it takes to tell all."""


@dataclass(frozen=True)
class Team:
    """This rank among all that measure."""

    process: Process
    device: torch.device
    control: dist.ProcessGroup | None
    """gloo, for agreements; None if this rank is alone."""
    clock: ClockOffset
    hosts: tuple[int, ...]
    """Number of the host of each rank."""
    names: tuple[str, ...]
    """Name of the host of each rank."""

    @property
    def rank(self) -> int:
        """This rank."""
        return self.process.rank

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.process.ranks

    @property
    def per_host(self) -> int:
        """Ranks on the first host."""
        return self.hosts.count(0)

    @property
    def first(self) -> bool:
        """True if this rank decides."""
        return self.process.rank == 0

    @classmethod
    def meet(cls, process: Process, device: torch.device) -> Team:
        """Find out who is where; every rank must call it, torch.distributed's world is there already."""
        here = socket.gethostname(), process.rank - process.local_rank
        if process.ranks == 1:
            return cls(process, device, None, align(None, 1, 0), (0,), (here[0],))
        control = dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo")
        assert control is not None
        everyone: list[Any] = [None] * process.ranks
        dist.all_gather_object(everyone, here, group=control)
        order = list(dict.fromkeys(everyone))
        clock = align(control, process.ranks, process.rank)
        return cls(
            process, device, control, clock, tuple(order.index(e) for e in everyone), tuple(e[0] for e in everyone)
        )

    def told(self, numbers: Sequence[float]) -> list[float]:
        """Rank 0's numbers, on every rank; all must give as many."""
        if self.control is None:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(tensor, group=self.control, group_src=0)
        return [float(number) for number in tensor]

    def moment(self) -> int:
        """A moment soon, in nanoseconds of rank 0's clock; the same on every rank."""
        if self.control is None:
            return time.monotonic_ns()
        tensor = torch.tensor([time.monotonic_ns() + round(HEADROOM_SECONDS * 1e9)])
        dist.broadcast(tensor, group=self.control, group_src=0)
        return int(tensor)

    def now(self) -> int:
        """Nanoseconds of rank 0's clock."""
        return time.monotonic_ns() + self.clock.offset_ns

    def sleep_until(self, moment_ns: int) -> None:
        """Sleep until rank 0's clock shows a moment; not at all if it is over."""
        left = (moment_ns - self.now()) / 1e9
        if left > 0:
            time.sleep(left)

    def start_together(self) -> None:
        """Return at the same moment on every rank."""
        self.sleep_until(self.moment())

    def gather(self, value: Any) -> list[Any] | None:
        """What every rank has, by rank; on rank 0 only, None elsewhere."""
        if self.control is None:
            return [value]
        values: list[Any] | None = [None] * self.ranks if self.first else None
        dist.gather_object(value, values, group=self.control, group_dst=0)
        return values
