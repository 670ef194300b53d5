"""A few warm worker processes for all visitors; a visitor's newest request is the only one.

A visitor's newer request takes the place of an older one that waits, and ends the process that
works on it; which of them is the newer one the visitor's page says, for they may arrive in another
order. Nothing here grows without bound: visitors that wait, answers that are kept, and the
time that a simulation may take. Each worker has a second process that stands ready for when the
first is ended.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twin.description.problems import DescriptionError, Problem, fail

COMMAND = (sys.executable, "-P", "-m", "dashboards.whatif.worker")
MAX_WAITING, MAX_KEPT = 32, 12
"""Visitors that may wait, a minute each at worst; and answers kept for those who zoom into them."""
MAX_VISITORS = 1024
"""Whose newest request is remembered; that is a few words each."""
MAX_SECONDS = 60.0
"""Of a simulation: nobody looks at a page for longer, and the next visitor waits."""
MAX_TABLE_BYTES = 256 << 20
"""Of an answer's tables, which the server holds in memory for each that is kept."""


@dataclass(frozen=True)
class Answer:
    """Figures of both jobs, and the events of a few ranks of both (none if they are too many)."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]
    ranks: tuple[int, ...]
    tables: tuple[pa.Table, ...]


@dataclass(frozen=True)
class Request:
    """What one visitor asked last."""

    ticket: int
    visitor: str
    line: bytes


@dataclass(frozen=True)
class Newest:
    """What is known of a visitor's newest request."""

    ticket: int
    asked_at: float
    """When the visitor's page asked, by its own clock."""


class Pool:
    """Runs requests in processes. Threads and processes start with the first request."""

    def __init__(self, workers: int, command: tuple[str, ...] = COMMAND, seconds: float = MAX_SECONDS) -> None:
        self._workers, self._command, self._seconds = workers, command, seconds
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._running: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}
        self._answers: OrderedDict[int, Answer | str] = OrderedDict()
        self._newest: OrderedDict[str, Newest] = OrderedDict()
        self._tickets = itertools.count(1)
        self._threads: list[threading.Thread] = []
        self._closed = False

    def ask(self, visitor: str, old: Mapping[str, Any], new: Mapping[str, Any], asked_at: float = 0.0) -> int:
        """Ask for a simulation; return the ticket it is known by. Raises DescriptionError if too many wait.

        A request that a newer one superseded on its way changes nothing, and gets the newer one's ticket.
        """
        line = json.dumps({"old": old, "new": new}).encode() + b"\n"
        with self._changed:
            if self._superseded(visitor, asked_at):
                return self._newest[visitor].ticket
            if visitor not in self._waiting and len(self._waiting) >= MAX_WAITING:
                raise fail("what-if", "too many others are waiting for a simulation; try again in a minute")
            self._end(visitor)
            request = Request(next(self._tickets), visitor, line)
            self._waiting[visitor] = request
            self._remember(visitor, Newest(request.ticket, asked_at))
            while len(self._threads) < self._workers:
                thread = threading.Thread(target=self._work, daemon=True, name="what-if")
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
            return request.ticket

    def answer(self, ticket: int) -> Answer | None:
        """Return an answer, None while it is worked on. Raises DescriptionError if there will be none."""
        with self._changed:
            found = self._answers.get(ticket)
            if found is None:
                if any(r.ticket == ticket for r in self._waiting.values()):
                    return None
                if any(number == ticket for number, _ in self._running.values()):
                    return None
                raise fail("what-if", "is not known any more; change something to simulate again")
            if isinstance(found, str):
                raise DescriptionError([Problem("", line) for line in found.splitlines()])
            return found

    def newest(self, visitor: str) -> int | None:
        """Return the ticket of what a visitor asked last; None if nothing is known of that."""
        with self._changed:
            found = self._newest.get(visitor)
            return None if found is None else found.ticket

    def cancel(self, visitor: str, asked_at: float | None = None) -> None:
        """End what a visitor asked for, unless that is newer than what says so."""
        with self._changed:
            if asked_at is None:
                self._end(visitor)
            elif not self._superseded(visitor, asked_at):
                self._end(visitor)
                self._remember(visitor, Newest(next(self._tickets), asked_at))

    def close(self) -> None:
        """End all processes and threads."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            for _, process in self._running.values():
                process.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)

    def _superseded(self, visitor: str, asked_at: float) -> bool:
        found = self._newest.get(visitor)
        return found is not None and asked_at < found.asked_at

    def _remember(self, visitor: str, newest: Newest) -> None:
        self._newest.pop(visitor, None)
        self._newest[visitor] = newest
        while len(self._newest) > MAX_VISITORS:
            self._newest.popitem(last=False)

    def _end(self, visitor: str) -> None:
        self._waiting.pop(visitor, None)
        running = self._running.pop(visitor, None)
        if running is not None:
            running[1].kill()

    def _work(self) -> None:
        process, spare = self._started(), self._started()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    _stop(process)
                    _stop(spare)
                    return
                if process is None or process.poll() is not None:
                    _stop(process)
                    process, spare = spare, self._started()
                visitor, request = self._waiting.popitem(last=False)
                if process is None:
                    self._keep(request.ticket, "no process can be started to simulate; try again in a minute")
                    continue
                self._running[visitor] = (request.ticket, process)
            found, healthy = self._result(process, request.line)
            with self._changed:
                ours = self._running.get(visitor)
                wanted = ours is not None and ours[0] == request.ticket
                if wanted:
                    del self._running[visitor]
                    self._keep(request.ticket, found)
            if not (wanted and healthy):  # ended, or about to be
                _stop(process)
                process, spare = spare, self._started()  # so that the next request finds a warm one

    def _keep(self, ticket: int, found: Answer | str) -> None:
        self._answers[ticket] = found
        while len(self._answers) > MAX_KEPT:
            self._answers.popitem(last=False)

    def _started(self) -> subprocess.Popen[bytes] | None:
        """Start a process; None if the system has no room for one."""
        try:
            return subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return None

    def _result(self, process: subprocess.Popen[bytes], line: bytes) -> tuple[Answer | str, bool]:
        """Return the answer, and whether the process can take another request."""
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._seconds, end)
        timer.daemon = True
        timer.start()
        try:
            return _exchange(process, line), True
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            if late.is_set():
                words = f"took longer than {self._seconds:g} s and was ended; use `fourfold simulate` for such a job"
                return words, False
            return "the simulation ended without an answer; change something to try again", False
        finally:
            timer.cancel()


def _exchange(process: subprocess.Popen[bytes], line: bytes) -> Answer | str:
    """Send a request and read its answer; text is what is wrong with the request.

    Raises OSError, ValueError, KeyError or TypeError if the process ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    head = json.loads(process.stdout.readline())
    if sum(head["sizes"]) > MAX_TABLE_BYTES:
        raise ValueError("the tables are too large")
    tables = []
    for size in head["sizes"]:
        content = process.stdout.read(size)
        if len(content) != size:
            raise ValueError("the process ended")
        tables.append(pa.ipc.open_stream(content).read_all())
    if "problem" in head:
        return str(head["problem"])
    return Answer(head["old"], head["new"], tuple(head["ranks"]), tuple(tables))


def _stop(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
