"""Threads that see when exchanges end: nobody waits for what was started before, and ends are told when they are."""

import threading
import time
from typing import Any

import pytest

from runtime.parallel.collectives import Together
from runtime.parallel.ops import Op
from runtime.tracing.listener import HostListener

LONG_SECONDS = 10.0


class Work:
    """Of torch.distributed: done when it is let go."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.waited = 0

    def wait(self) -> None:
        self.waited += 1
        if not self.over.wait(LONG_SECONDS):
            raise TimeoutError("nobody let it go")


def started(listener: HostListener, name: str, communicator: Any, work: Work) -> tuple[Op, Any]:
    op = Op(name, "fwd", None, None, kind="all_gather", communicator=communicator)
    return op, listener.start(op, lambda: Together([work]))


def wait(listener: HostListener, op: Op, handle: Any) -> None:
    listener.wait(op, handle.wait)


def end_of(listener: HostListener, name: str) -> int:
    return next(note.end_ns for note in listener.notes if note.op.name == name and note.kind == "collective")


@pytest.mark.parametrize("second", ["z_gather", "z_scatter"])
def test_a_rank_waits_for_what_it_wants_not_for_what_it_started_before(second):
    listener, slow, quick = HostListener(0), Work(), Work()
    first = started(listener, "slow", "z_scatter", slow)
    other = started(listener, "quick", second, quick)
    listener.watch()
    quick.over.set()
    begin = time.perf_counter()
    wait(listener, *other)
    assert time.perf_counter() - begin < LONG_SECONDS / 2
    slow.over.set()
    wait(listener, *first)
    assert (slow.waited, quick.waited) == (1, 1)
    assert all(end_of(listener, name) > 0 for name in ("slow", "quick"))
    listener.finish()


def test_ends_are_seen_while_the_rank_does_something_else():
    listener, slow, quick = HostListener(0), Work(), Work()
    first = started(listener, "slow", "z_scatter", slow)
    other = started(listener, "quick", "z_gather", quick)
    listener.watch()
    quick.over.set()
    deadline = time.perf_counter() + LONG_SECONDS
    while end_of(listener, "quick") < 0 and time.perf_counter() < deadline:
        time.sleep(0.001)
    seen = end_of(listener, "quick")
    assert seen > 0
    slow.over.set()
    wait(listener, *other)
    wait(listener, *first)
    assert end_of(listener, "quick") == seen
    listener.finish()


def test_it_may_be_waited_for_twice():
    """As by a stream beside the compute stream, and by that one later."""
    listener, slow, quick = HostListener(0), Work(), Work()
    started(listener, "slow", "z_gather", slow)
    _, handle = started(listener, "quick", "z_gather", quick)
    listener.watch()
    quick.over.set()
    handle.wait()
    again = threading.Thread(target=handle.wait, daemon=True)
    again.start()
    again.join(LONG_SECONDS / 2)
    assert not again.is_alive()
    assert quick.waited == 1
    slow.over.set()
    listener.finish()


def test_what_fails_is_raised_where_it_is_waited_for():
    class Broken(Work):
        def wait(self) -> None:
            self.over.wait(LONG_SECONDS)
            raise RuntimeError("connection closed by peer")

    listener, work = HostListener(0), Broken()
    _, handle = started(listener, "broken", "z_gather", work)
    listener.watch()
    time.sleep(0.05)
    work.over.set()
    with pytest.raises(RuntimeError, match="closed by peer"):
        handle.wait()
    listener.finish()
