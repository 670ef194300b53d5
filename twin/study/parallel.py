"""Run independent pieces of work in several processes, with progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

FEW = 4
"""Fewer pieces than this are not worth starting processes for."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(work: Callable[[Item], Answer], items: Sequence[Item], workers: int,
                progress: Callable[[int, int], None] = lambda _done, _all: None, *,
                chunk: int | None = None) -> list[Answer]:  # fmt: skip
    """Apply `work` to every item, in order; `work` must be a module-level function.

    A process takes `chunk` items at a time. Interrupted, what has not begun is dropped and the
    processes are ended.
    """
    answers: list[Answer] = []
    if workers <= 1 or len(items) < FEW:
        for number, item in enumerate(items):
            progress(number, len(items))
            answers.append(work(item))
        return answers
    context = multiprocessing.get_context("forkserver")
    if chunk is None:
        chunk = max(1, min(8, len(items) // (workers * 4)))
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts)
    try:
        for number, answer in enumerate(pool.map(work, items, chunksize=chunk)):
            progress(number, len(items))
            answers.append(answer)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    pool.shutdown()
    return answers


def _leave_interrupts() -> None:
    """Ctrl-C reaches all processes of the terminal; the one that started the others handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
