"""Copies of the state in memory, made while training goes on.

`save` copies the rank's part to host memory and returns; a background thread writes it into the memory
file system and sends it to a neighbour. A copy counts when every rank says that it is there; then the one
before is deleted, so that there are two at most.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from runtime.checkpoint.host import Outgoing
from runtime.parallel.collectives import CollectiveError
from runtime.step.context import Context
from runtime.step.optimizer import Optimizer
from runtime.survive.memory.exchange import exchange
from runtime.survive.memory.neighbours import keepers, leaders
from runtime.survive.memory.part import Part, write_part
from runtime.survive.memory.place import Place


@dataclass(frozen=True)
class Session:
    """What all ranks of one start of a run have in common, and where this host keeps its parts."""

    run: str
    name: str
    place: Place
    host: str
    timeout_seconds: float
    to_empty: bool = False
    """True if what the host held before is of no use once a checkpoint is loaded, and this rank deletes it."""

    def loaded(self) -> None:
        """Delete what was held before: a checkpoint that holds as much could be read."""
        if self.to_empty:
            with suppress(OSError):  # the first copy that is whole takes its place anyway
                self.place.empty()


@dataclass
class _Job:
    thread: threading.Thread | None = None
    error: Exception | None = None
    problem: str | None = None


@dataclass
class MemoryCopies:
    """One rank's side of the copies of a run; every rank calls the same methods."""

    session: Session
    context: Context
    optimizer: Optimizer
    _group: dist.ProcessGroup | None = field(init=False, default=None)
    _keeper: int | None = field(init=False, default=None)
    _senders: list[int] = field(init=False, default_factory=list)
    _leads: bool = field(init=False, default=True)
    """True if this rank deletes on its host."""
    _outgoing: Outgoing | None = field(init=False, default=None)
    _job: _Job | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        ranks, rank = self.context.mesh.grid.ranks, self.context.mesh.rank
        if ranks == 1:
            return
        self._group = dist.new_group(
            list(range(ranks)),
            timeout=timedelta(seconds=self.session.timeout_seconds),
            backend="gloo",
            use_local_synchronization=True,
            group_desc="memory copies",
        )
        hosts = [""] * ranks
        dist.all_gather_object(hosts, self.session.host, group=self._group)
        kept_by = keepers(hosts)
        self._keeper = kept_by[rank]
        self._senders = [sender for sender, keeper in enumerate(kept_by) if keeper == rank]
        self._leads = rank in leaders(hosts)

    @classmethod
    def of(cls, session: Session | None, context: Context, optimizer: Optimizer) -> MemoryCopies | None:
        """Make it if there is a session, that is if copies are wanted."""
        return None if session is None else cls(session, context, optimizer)

    def save(self, step: int, samples: int, extra: dict[str, Any]) -> str | None:
        """Begin a copy of the state after `step` steps; waits before that for the one before.

        Returns what was wrong with that one, if anything: training can go on without it. Raises
        CollectiveError if a peer was lost.
        """
        problem = self.wait()
        if self._outgoing is None:
            self._outgoing = Outgoing(self.context, self.optimizer)
        self._outgoing.fill()
        mesh = self.context.mesh
        part = Part(
            run=self.session.run,
            session=self.session.name,
            step=step,
            samples=samples,
            grid=mesh.grid.by_axis(),
            rank=mesh.rank,
            model=self.context.job.model.model_dump(mode="json"),
            extra=extra,
        )
        job = self._job = _Job()
        job.thread = threading.Thread(
            target=self._run, args=(job, part, self._outgoing), name="memory copy", daemon=True
        )
        job.thread.start()
        return problem

    def wait(self) -> str | None:
        """Wait for the copy being made; see `save`."""
        job, self._job = self._job, None
        if job is None or job.thread is None:
            return None
        job.thread.join()
        if job.error is not None:
            raise job.error
        return job.problem

    def forget(self) -> None:
        """Delete all copies: the run has gone back to before them."""
        self.wait()
        if self._leads:
            self.session.place.empty()

    def close(self) -> None:
        """Delete everything: the run is over, or saved."""
        self.wait()
        if self._leads:
            self.session.place.remove()

    def _run(self, job: _Job, part: Part, outgoing: Outgoing) -> None:
        try:
            job.problem = self._copy(part, outgoing)
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            job.error = CollectiveError(
                f"{self.context.mesh.where()}: copy of step {part.step} in memory failed: "
                f"a peer has probably died ({reason})"
            )
        except Exception as error:  # whatever it is, the thread that trains has to know
            job.error = error

    def _copy(self, part: Part, outgoing: Outgoing) -> str | None:
        place = self.session.place
        folder = place.step(part.step, part.session)
        problem = ""
        try:
            folder.mkdir(exist_ok=True)
            write_part(folder, part, outgoing.state)
        except OSError as error:
            problem = str(error)
        problems = [problem]
        if self._group is not None:
            received = exchange(self._group, folder, part.rank, self._keeper, self._senders, whole=not problem)
            problems = [""] * self.context.mesh.grid.ranks
            dist.all_gather_object(problems, problem or received, group=self._group)
        bad = next((text for text in problems if text), None)
        if self._leads:
            if bad is None:
                with suppress(OSError):  # an old copy that stays does no harm
                    place.keep_from(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        if bad is None:
            return None
        return (
            f"no copy of step {part.step} in memory: rank {problems.index(bad)}: {bad}; the one before stays, "
            "and training goes on"
        )
