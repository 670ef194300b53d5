"""Points computed by the workers of a Dask scheduler, on this machine or on many nodes.

Dask is an extra (`pip install 'fourfold[dask]'`). It moves pickled Python between client,
scheduler and workers: whoever reaches the scheduler can run code there, and the scheduler in what
connects to it. Connect to your own only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from twin.description.problems import fail

if TYPE_CHECKING:
    from distributed import Client

Task = TypeVar("Task")
Answer = TypeVar("Answer")

CONNECT_SECONDS = 10
AHEAD = 2
"""Tasks handed out for each thread of the workers, so that none waits for the next."""
INSTALL = "needs Dask; install it with: pip install 'fourfold[dask]'"


def completed_by(
    client: Client, work: Callable[[Task], Answer], tasks: Sequence[Task]
) -> Generator[tuple[Task, Answer | None], None, None]:
    """Apply `work` to every task on the scheduler's workers; yield each with its answer as it comes.

    The answer is None if workers kept dying over a task.
    """
    from distributed import KilledWorker, as_completed  # noqa: PLC0415

    left = iter(tasks)
    threads = sum(client.nthreads().values()) or 1
    running = {}

    def hand_out(count: int) -> list[object]:
        new = []
        for task in (t for _, t in zip(range(count), left, strict=False)):
            future = client.submit(work, task, pure=False)
            running[future.key] = task
            new.append(future)
        return new

    waiting = as_completed(hand_out(threads * AHEAD))
    try:
        for future in waiting:
            task = running.pop(future.key)
            try:
                answer = future.result()
            except KilledWorker:
                answer = None
            yield task, answer
            for new in hand_out(1):
                waiting.add(new)
    finally:
        client.cancel(list(waiting.futures))


@contextmanager
def scheduler(address: str, code: Callable[[], str]) -> Iterator[Client]:
    """Connect to a running Dask scheduler whose workers have the same Fourfold."""
    try:
        from distributed import Client  # noqa: PLC0415
    except ImportError:
        raise fail("--scheduler", INSTALL, address) from None
    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = f"no Dask scheduler answers ({reason}); start one with `dask scheduler`"
        raise fail("--scheduler", remedy, address) from None
    with client:
        check_workers(client, code)
        yield client


@contextmanager
def slurm(jobs: int, code: Callable[[], str]) -> Iterator[Client]:
    """Start so many SLURM jobs of Dask workers, as `~/.config/dask/jobqueue.yaml` describes them."""
    try:
        from dask_jobqueue import SLURMCluster  # noqa: PLC0415
        from distributed import Client  # noqa: PLC0415
    except ImportError:
        raise fail("--slurm", INSTALL, jobs) from None
    try:
        cluster = SLURMCluster()
    except (ValueError, RuntimeError) as error:
        raise fail(
            "--slurm",
            f"{str(error).splitlines()[0]}; describe your jobs in ~/.config/dask/jobqueue.yaml (docs/howto/studies.md)",
        ) from None
    with cluster, Client(cluster) as client:
        cluster.scale(jobs=jobs)
        client.wait_for_workers(1)
        check_workers(client, code)
        yield client


def check_workers(client: Client, code: Callable[[], str]) -> None:
    """Refuse workers that would compute other figures than this process."""
    found = client.run(code, on_error="return")
    if not found:
        raise fail("--scheduler", "has no workers; start some with `dask worker ADDRESS`")
    own = code()
    for worker, theirs in found.items():
        if theirs != own:
            shown = "no Fourfold" if isinstance(theirs, BaseException) else f"Fourfold {theirs}"
            raise fail("--scheduler", f"worker {worker} has {shown}, and this is {own}; install the same there")
