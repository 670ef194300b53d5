"""Run independent pieces of work in several processes, with progress."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

from twin.engine.threads import load_numpy_alone

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MIN_ITEMS = 4
"""Fewer pieces than this are not worth starting processes for."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(
    work: Callable[[Item], Answer],
    items: Sequence[Item],
    workers: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    chunk: int | None = None,
) -> list[Answer]:
    """Apply `work` to every item, in order; `work` must be a module-level function.

    A process takes `chunk` items at a time. Interrupted, what has not begun is dropped and the
    processes are ended.
    """
    answers: list[Answer] = []
    if workers <= 1 or len(items) < MIN_ITEMS:
        for number, item in enumerate(items):
            progress(number, len(items))
            answers.append(work(item))
        return answers
    if chunk is None:
        chunk = max(1, min(8, len(items) // (workers * 4)))
    with ended_like_interrupted(), pool_with_lifeline(workers) as pool:
        for number, answer in enumerate(pool.map(work, items, chunksize=chunk)):
            progress(number, len(items))
            answers.append(answer)
    return answers


@contextmanager
def pool_with_lifeline(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool whose processes end when the block fails, or whoever started them ends.

    Each holds the reading end of a pipe whose writing end only the starting process has. When that
    process closes it, or is killed, the pipe ends and the worker leaves at once.
    """
    import multiprocessing  # noqa: PLC0415  not for those who only count cores
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    context = multiprocessing.get_context("forkserver")
    start_deaf()
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=leave_with, initargs=(lifeline,))
    try:
        yield pool
    except BaseException:
        held.close()  # ends the workers now, whatever they are at
        raise
    finally:
        # its thread is waited for, or Python's own clean-up at exit may meet it half closed
        pool.shutdown(wait=True, cancel_futures=True)
        held.close()
        lifeline.close()


def start_deaf() -> None:
    """Start the process that workers are forked from with Ctrl-C blocked: one that hits its imports is a traceback."""
    from multiprocessing import forkserver  # noqa: PLC0415

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_with(lifeline: Connection) -> None:
    """End this process when the other end of `lifeline` closes; leave Ctrl-C to the parent.

    The other end is only in the process that started this one: it closes when that one is killed too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    load_numpy_alone()

    def watch() -> None:
        try:
            lifeline.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()


@contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """Let SIGTERM, with which batch systems end jobs, end work as Ctrl-C does."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
