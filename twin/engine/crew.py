"""Who does independent pieces of work: processes of this machine, by their number, or a crew on many nodes.

The pieces and their answers are the same either way, and so is their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from twin.engine.parallel import in_parallel

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Crew(Protocol):
    """Workers that pieces are sent to."""

    @property
    def size(self) -> int:
        """Pieces that are worked on at once."""

    def answers(self, work: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[tuple[int, Answer]]:
        """Apply `work`, which can be pickled, to every item; yield each answer with its item's index, as it comes."""


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
