"""Noting when each op ran.

* `HostListener`, for CPUs: the monotonic clock around each op; a collective ends when its
  future does, on gloo's own thread. What is posted message by message has no future: threads wait for those
  that other ops run beside.
* `DeviceListener`, for GPUs: events on the streams. Each communicator gets a stream here, on which
  the collective's own kernel is waited for, so that its end is seen when it is, not when the compute
  stream comes to wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar, cast

import torch

from runtime.parallel.collectives import Together
from runtime.parallel.ops import Op

T = TypeVar("T")
EventKind = Literal["compute", "collective", "wait"]


@dataclass(slots=True)
class Note:
    """One op that ran, in nanoseconds of this rank's host clock."""

    op: Op
    kind: EventKind
    step: int
    begin_ns: int
    end_ns: int = -1


@dataclass
class HostListener:
    """Times ops by the host's monotonic clock."""

    step: int
    notes: list[Note] = field(default_factory=list)
    in_autograd: bool = True
    _flight: dict[str, Note] = field(default_factory=dict)
    _unwatched: list[tuple[Any, Note]] = field(default_factory=list)
    """Collectives that nothing has run beside yet: most are waited for at once, and need no watching."""
    _watch: dict[tuple[str | None, str | None], SimpleQueue[_Watched | None]] = field(default_factory=dict)
    """What each watching thread is to wait for, in order; by communicator, and by direction of messages."""

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work."""
        if self._unwatched:
            self.watch()
        begin = time.monotonic_ns()
        result = run()
        self.notes.append(Note(op, "compute", self.step, begin, time.monotonic_ns()))
        return result

    def begin(self, op: Op) -> Note:
        """Device work begins; see `end`."""
        if self._unwatched:
            self.watch()
        note = Note(op, "compute", self.step, time.monotonic_ns())
        self.notes.append(note)
        return note

    def end(self, begun: Note) -> None:
        """It has ended; the last call holds."""
        begun.end_ns = time.monotonic_ns()

    def start(self, op: Op, run: Callable[[], T]) -> T:
        """Start a collective; note its end when gloo is done."""
        note = Note(op, "collective", self.step, time.monotonic_ns())
        self.notes.append(note)
        self._flight[op.name] = note
        work = run()
        shown: Any = _Watched(work, note) if isinstance(work, Together) else work
        if shown is not None:
            self._unwatched.append((shown, note))
        return cast("T", shown)

    def watch(self) -> None:
        """See when collectives end that are in flight: by their future, exchanges and messages by a thread that waits.

        Exchanges of one communicator, and its messages of one direction, end in order and have a thread of their own:
        others may come much later, or only when this rank has done what they would keep it from.
        """
        for work, note in self._unwatched:
            if note.end_ns >= 0:
                continue
            if not isinstance(work, _Watched):
                work.get_future().add_done_callback(partial(_end, note))
                continue
            of = note.op.communicator, note.op.kind if note.op.kind in ("send", "receive") else None
            if of not in self._watch:
                self._watch[of] = SimpleQueue()
                threading.Thread(target=_watch, args=(self._watch[of],), daemon=True).start()
            work.done = threading.Event()
            self._watch[of].put(work)
        self._unwatched.clear()

    def wait(self, op: Op, run: Callable[[], T]) -> T:
        """Wait for a collective."""
        begin = time.monotonic_ns()
        result = run()
        end = time.monotonic_ns()
        self.notes.append(Note(op, "wait", self.step, begin, end))
        note = self._flight.pop(op.name)
        self._unwatched = [each for each in self._unwatched if each[1] is not note]  # its memory is not kept
        # the callback may come a little late, never later than the wait
        note.end_ns = end if note.end_ns < 0 else min(note.end_ns, end)
        return result

    def finish(self) -> list[Note]:
        """Return the notes, complete; of a pass that broke off there is none."""
        for queue in self._watch.values():
            queue.put(None)
        self.notes = [note for note in self.notes if note.end_ns >= 0]
        return self.notes


@dataclass
class _Watched:
    """An exchange, or a message, that one thread alone waits for: the rank's own, or the watching one if it is first.

    That has others before it: a rank that waits for a gather shall not wait for a slow scatter that it started earlier.
    """

    work: Together
    note: Note
    done: threading.Event | None = None
    """Once it is handed over: set when somebody has waited for it."""
    failed: BaseException | None = None
    _taken: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        """Be who waits; false if somebody else is."""
        return self._taken.acquire(blocking=False)

    def wait(self) -> None:
        """Wait, by way of the watching thread if it does so already."""
        if self.done is None:
            self.work.wait()
            return
        if self.take():
            self.work.wait()
            self.done.set()  # for whoever waits once more
            return
        self.done.wait()
        if self.failed is not None:
            raise self.failed


def _watch(queue: SimpleQueue[_Watched | None]) -> None:
    while (watched := queue.get()) is not None:
        if not watched.take():
            continue
        try:
            watched.work.wait()
            _end(watched.note)
        except BaseException as error:  # raised again where it is waited for
            watched.failed = error
        assert watched.done is not None
        watched.done.set()


def _end(note: Note, _done: Any = None) -> None:
    if note.end_ns < 0:
        note.end_ns = time.monotonic_ns()


@dataclass
class _DeviceNote:
    op: Op
    kind: EventKind
    begin: Any
    end: Any


class DeviceListener:
    """Times ops by events on the device's streams."""

    in_autograd = False

    def __init__(self, step: int, streams: dict[str, Any] | None = None) -> None:
        self.step = step
        self._streams = {} if streams is None else streams
        """Of each communicator; whoever listens to many steps keeps them, as a device has few streams to give."""
        self._notes: list[_DeviceNote] = []
        self._ends: dict[str, Any] = {}
        torch.cuda.synchronize()
        self._zero = self._mark()
        self._zero_ns = time.monotonic_ns()

    @staticmethod
    def _mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work."""
        begin = self._mark()
        result = run()
        self._notes.append(_DeviceNote(op, "compute", begin, self._mark()))
        return result

    def start(self, op: Op, run: Callable[[], T]) -> T:
        """Start a collective behind the compute issued so far, on its communicator's stream."""
        stream = self._streams.get(str(op.communicator))
        if stream is None:
            stream = self._streams[str(op.communicator)] = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            begin = self._mark()
            work: Any = run()
            if work is not None:  # a rank that is alone has sent nothing
                work.wait()  # of this stream for NCCL's own, not of the host
            end = self._mark()
        self._notes.append(_DeviceNote(op, "collective", begin, end))
        self._ends[op.name] = end
        return _Awaited(end)  # type: ignore[return-value]  # what the handle waits for instead

    def wait(self, op: Op, run: Callable[[], T]) -> T:
        """Let the compute stream wait for a collective."""
        begin = self._mark()
        result = run()
        self._notes.append(_DeviceNote(op, "wait", begin, self._mark()))
        return result

    def finish(self) -> list[Note]:
        """Wait for the device and turn events into host time."""
        torch.cuda.synchronize()

        def at(event: Any) -> int:
            milliseconds: float = self._zero.elapsed_time(event)
            return self._zero_ns + round(milliseconds * 1e6)

        return [Note(n.op, n.kind, self.step, at(n.begin), at(n.end)) for n in self._notes]


@dataclass(frozen=True)
class _Awaited:
    """Stands for a collective that a stream of ours has already waited for."""

    event: Any
    """Its end."""

    def wait(self) -> None:
        """Let the current stream wait."""
        torch.cuda.current_stream().wait_event(self.event)

    def is_completed(self) -> bool:
        """Tell whether the device is past it."""
        return bool(self.event.query())
