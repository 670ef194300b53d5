"""Times of single ops, by the listeners that trace training."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean, median
from typing import TypeVar

import torch

from runtime.calibration.sample import Sample, plug, spread, synchronize
from runtime.parallel.ops import Op
from runtime.tracing.listener import DeviceListener, HostListener, Note
from twin.trace.names import short_name

AnyListener = HostListener | DeviceListener
T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """What ops have in common that should take equally long."""

    name: str
    """Without micro-step, phase and block, and without the number of a repeated part."""
    phase: str
    bytes: float
    flops: float
    shape: tuple[int, ...]
    launches: int
    """Kernels that the op consists of, as it describes itself."""
    work: str = ""
    """Kind of work, of ops that are bounded by memory."""

    @classmethod
    def of(cls, op: Op) -> Kind:
        """The kind of an op.

        >>> Kind.of(Op("micro0/fwd/block3/norm1/normalize", "fwd", 3, 0)).name
        'norm/normalize'
        """
        name = re.sub(r"final_(?=norm)|(?<=norm)\d|(?<=residual)\d", "", short_name(op.name))
        launches = getattr(op.kernel, "kernels", 1)
        work = getattr(op.kernel, "work", "")
        return cls(name, op.phase, op.bytes, op.flops, op.shape, launches, work)


class CoreListener(HostListener):
    """Times ops by the time of this thread's core, without the turns that other ranks take on it."""

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work."""
        begin = time.thread_time_ns()
        result = run()
        self.notes.append(Note(op, "compute", self.step, begin, time.thread_time_ns()))
        return result

    def begin(self, op: Op) -> Note:
        """Device work begins."""
        note = Note(op, "compute", self.step, time.thread_time_ns())
        self.notes.append(note)
        return note

    def end(self, begun: Note) -> None:
        """It has ended."""
        begun.end_ns = time.thread_time_ns()


def new_listener(device: torch.device) -> AnyListener:
    """A listener for a device; make it just before it is to listen."""
    return DeviceListener(0) if device.type == "cuda" else HostListener(0)


def hear(device: torch.device, run: Callable[[AnyListener], None], plugs: int = 0) -> list[Note]:
    """The notes of one run; behind so many products on a GPU, so that the host is ahead of it.

    On CPUs, times of computing ops are those of the core.
    """
    listener = DeviceListener(0) if device.type == "cuda" else CoreListener(0)
    plug(device, plugs)
    run(listener)
    synchronize(device)
    return listener.finish()


def by_kind(notes: Iterable[Note]) -> dict[Kind, list[float]]:
    """Seconds of computing ops, by kind."""
    found: dict[Kind, list[float]] = {}
    for note in notes:
        if note.kind == "compute":
            found.setdefault(Kind.of(note.op), []).append((note.end_ns - note.begin_ns) / 1e9)
    return found


def sample_of(times: list[float]) -> Sample:
    """Times of one op as a sample."""
    return Sample(median(times), mean(times), spread(times), len(times))
