"""Run independent pieces of work in several processes, with progress."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

FEW = 4
"""Fewer pieces than this are not worth starting processes for."""


def in_parallel(work: Callable[[Item], Answer], items: Sequence[Item], workers: int,
                progress: Callable[[int, int], None] = lambda _done, _all: None) -> list[Answer]:  # fmt: skip
    """Apply `work` to every item, in order; `work` must be a module-level function."""
    answers: list[Answer] = []
    if workers <= 1 or len(items) < FEW:
        for number, item in enumerate(items):
            progress(number, len(items))
            answers.append(work(item))
        return answers
    context = multiprocessing.get_context("forkserver")
    chunk = max(1, min(8, len(items) // (workers * 4)))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for number, answer in enumerate(pool.map(work, items, chunksize=chunk)):
            progress(number, len(items))
            answers.append(answer)
    return answers
