"""Dask's workers as a crew: what a search would do in processes of this machine they do on many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from twin.description.problems import fail
from twin.engine.crew import Workers
from twin.studies import cluster
from twin.studies.directory import code_digest

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class DaskCrew:
    """The threads of a scheduler's workers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def size(self) -> int:
        """Threads of the workers that are there now."""
        return sum(self._client.nthreads().values()) or 1

    def answers(self, work: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[tuple[int, Answer]]:
        """Apply `work` to every item; yield each answer with its item's index, as it comes.

        Raises DescriptionError if workers keep dying over an item.
        """
        tasks = list(enumerate(items))
        with closing(cluster.completed_by(self._client, partial(_done, work), tasks)) as finished:
            for (index, _), answer in finished:
                if answer is None:
                    remedy = "workers died over a candidate, again and again; give them more memory"
                    raise fail("--scheduler", remedy)
                yield index, answer[0]


def _done(work: Callable[[Item], Answer], task: tuple[int, Item]) -> tuple[Answer]:
    """Do a piece of work on a worker; in a tuple, so that no answer looks like none."""
    return (work(task[1]),)


@contextmanager
def crew(workers: int, scheduler: str | None = None, slurm: int | None = None) -> Iterator[Workers]:
    """Give processes of this machine, the workers of a Dask scheduler, or those of so many SLURM jobs."""
    if scheduler is not None and slurm is not None:
        raise fail("--slurm", "starts a scheduler of its own; leave out --scheduler", slurm)
    if scheduler is not None:
        with cluster.scheduler(scheduler, code_digest) as client:
            yield DaskCrew(client)
    elif slurm is not None:
        with cluster.slurm(slurm, code_digest) as client:
            yield DaskCrew(client)
    else:
        yield workers
