"""Processes of this machine that compute points, and end when whoever started them ends.

A pool that hands out a few tasks at a time: what is in hand when a worker dies (for want of
memory, say) is known, and tried once more by itself, so that one bad task does not take others
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from typing import TypeVar

from twin.engine.parallel import pool_with_lifeline

Task = TypeVar("Task")
Answer = TypeVar("Answer")

AHEAD = 1
"""Tasks handed out beyond one for each worker, so that none waits for the next."""


def completed(
    work: Callable[[Task], Answer], tasks: Sequence[Task], workers: int
) -> Generator[tuple[Task, Answer | None], None, None]:
    """Apply `work`, a module-level function, to every task; yield each with its answer as it comes.

    The answer is None if the process that worked on it died, twice.
    """
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task, work(task)
        return
    waiting = list(tasks)
    while waiting:
        suspects: list[Task] = []
        with closing(_until_broken(work, tuple(waiting), workers, suspects)) as answers:
            for task, answer in answers:
                waiting.remove(task)
                yield task, answer
        for task in suspects:
            waiting.remove(task)
            with closing(_until_broken(work, [task], 1, [])) as answers:
                alone = list(answers)
            yield task, alone[0][1] if alone else None


def _until_broken(
    work: Callable[[Task], Answer], tasks: Sequence[Task], workers: int, suspects: list[Task]
) -> Generator[tuple[Task, Answer], None, None]:
    """Yield answers until all are there or a worker dies; `suspects` are then the tasks in hand."""
    left = iter(tasks)
    with pool_with_lifeline(workers) as pool:
        running: dict[Future[Answer], Task] = {}

        def hand_out() -> None:
            while len(running) < workers + AHEAD and (task := next(left, None)) is not None:
                running[pool.submit(work, task)] = task

        try:
            hand_out()
            while running:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    answer = future.result()
                    yield running.pop(future), answer
                hand_out()
        except BrokenProcessPool:
            if not running:
                raise  # the pool cannot even start
            suspects += running.values()
