"""Who does independent pieces of work: processes of this machine, by their number, or a crew on many nodes.

The pieces and their answers are the same either way, and so is their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

from twin.engine.parallel import ended_like_interrupted, in_parallel, pool_with_lifeline

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

Item = TypeVar("Item")
Answer = TypeVar("Answer")
WAVE = 16
"""Pieces of each of a crew's workers between two looks at what has come of them: far away, a look takes time."""
AHEAD = 8
"""Pieces of each process that are sent to it before it is free, where none depends on another's answer: to wait for the
next one takes as long as a short piece."""


class Crew(Protocol):
    """Workers that pieces are sent to."""

    @property
    def size(self) -> int:
        """Pieces that are worked on at once."""

    def answers(self, work: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[tuple[int, Answer]]:
        """Apply `work`, which can be pickled, to every item; yield each answer with its item's index, as it comes."""


class Processes:
    """Processes of this machine that stay for several calls: to start one takes as long as many a piece of work."""

    def __init__(self, size: int, opened: ExitStack) -> None:
        self.size = size
        self._opened = opened
        self._pool: ProcessPoolExecutor | None = None

    def answers(self, work: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[tuple[int, Answer]]:
        """Apply `work`, which can be pickled, to every item; yield each answer with its item's index, as it comes."""
        yield from self.as_asked(work, enumerate(items), ahead=AHEAD)

    def as_asked(
        self, work: Callable[[Item], Answer], items: Iterator[tuple[int, Item]], *, ahead: int = 1
    ) -> Iterator[tuple[int, Answer]]:
        """Do items with their numbers, of which the next is asked for when a process is free, or so many before."""
        if self._pool is None:  # they start with the first piece of work
            self._opened.enter_context(ended_like_interrupted())
            self._pool = self._opened.enter_context(pool_with_lifeline(self.size))
        from concurrent.futures import FIRST_COMPLETED, wait  # noqa: PLC0415  not for those who only count

        under_way: dict[Future[Answer], int] = {}
        while True:
            for number, item in islice(items, ahead * self.size - len(under_way)):
                under_way[self._pool.submit(work, item)] = number
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future.result()


@contextmanager
def processes(workers: Workers) -> Iterator[Workers]:
    """Keep processes for several calls, where workers are a number of them."""
    if not isinstance(workers, int) or workers <= 1:
        yield workers
        return
    with ExitStack() as opened:
        yield Processes(workers, opened)


Workers = int | Crew
"""A number of processes here, or a crew."""


def size_of(workers: Workers) -> int:
    """Return how many pieces are worked on at once."""
    return workers if isinstance(workers, int) else workers.size


def done_by(
    workers: Workers,
    work: Callable[[Item], Answer],
    items: Sequence[Item],
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[Answer]:
    """Apply `work` to every item, one at a time for each worker; return the answers in the order of the items."""
    if isinstance(workers, int):
        return in_parallel(work, items, workers, progress, chunk=1)
    found: dict[int, Answer] = {}
    for index, answer in workers.answers(work, items):
        progress(len(found), len(items))
        found[index] = answer
    return [found[index] for index in range(len(items))]


def as_asked(
    workers: Workers, work: Callable[[Item], Answer], items: Iterator[tuple[int, Item]]
) -> Iterator[tuple[int, Answer]]:
    """Apply `work` to items; yield the number that comes with each, and its answer, as it comes.

    The next item is asked for when somebody is free, so that it may depend on the answers before.
    """
    if isinstance(workers, Processes):
        yield from workers.as_asked(work, items)
    elif isinstance(workers, int):
        for number, item in items:
            yield number, work(item)
    else:
        while wave := list(islice(items, WAVE * workers.size)):
            for index, answer in workers.answers(work, [item for _, item in wave]):
                yield wave[index][0], answer


def is_here(workers: Workers) -> bool:
    """Tell whether the work is done on this machine, where short pieces are worth sending."""
    return isinstance(workers, int | Processes)
