"""Checkpoints of a training run: saved while training goes on, loaded on any grid.

`save` copies weights and moments to host memory and returns; a background thread writes them with
PyTorch's distributed checkpoint. `load_latest` takes the newest checkpoint that is whole: nothing
reaches the model before all ranks have read and verified their parts of it, so that no rank goes
on from another step than the others.
"""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from runtime.checkpoint import directory
from runtime.checkpoint.host import Outgoing
from runtime.checkpoint.loading import Loaded, load_newest
from runtime.checkpoint.manifest import Manifest
from runtime.checkpoint.planner import SavePieces
from runtime.checkpoint.storage import Writer
from runtime.checkpoint.team import Team
from runtime.parallel.collectives import CollectiveError
from runtime.parallel.mesh import Mesh
from runtime.step.context import Context
from runtime.step.optimizer import Optimizer
from twin.description.problems import DescriptionError, Problem, fail

T = TypeVar("T")
TIMEOUT_SECONDS = 1800.0
"""Time that ranks wait for the slowest disk among them."""
REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "raise the quota there",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
}


class NoSpaceError(DescriptionError):
    """A checkpoint found no space on the disk, or no quota: a later one may."""


@dataclass
class _Job:
    """One checkpoint being written."""

    writer: Writer
    thread: threading.Thread | None = None
    error: Exception | None = None


@dataclass
class Checkpoints:
    """The checkpoints of one run in one directory. Every rank makes one and calls the same methods.

    From `save` until it was waited for (by `wait`, `close`, `load_latest` or the next `save`) the group is the writing
    thread's: what else ranks have to agree on meanwhile goes over another.

    Making it creates the directory, and removes what a run that died has left half-written; raises
    DescriptionError if it cannot be written.
    """

    root: Path
    mesh: Mesh
    keep: int = 3
    """Number of complete checkpoints that stay."""
    best: int | None = None
    """Step of one that stays besides, whatever its age."""
    timeout_seconds: float = TIMEOUT_SECONDS
    group: dist.ProcessGroup | None = None
    """On gloo, over the ranks of the mesh, used by nobody else meanwhile; made if absent."""
    _team: Team = field(init=False, repr=False)
    _outgoing: Outgoing | None = field(init=False, default=None, repr=False)
    _job: _Job | None = field(init=False, default=None, repr=False)
    _useless: set[Path] = field(init=False, default_factory=set, repr=False)
    """Checkpoints that could not be loaded: they do not count as kept."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise fail("checkpoints.keep", "keep at least 1 checkpoint", self.keep)
        self._team = Team.of(self.mesh, self.group, timeout_seconds=self.timeout_seconds)
        try:
            self.from_first(lambda: directory.start(self.root))
        except OSError as error:
            raise _not_written(self.root, error) from None

    def save(
        self, context: Context, optimizer: Optimizer, *, step: int, samples: int, extra: dict[str, Any] | None = None
    ) -> None:
        """Save the state after `step` optimizer steps and `samples` sequences.

        Returns when the state is copied to host memory; waits before that for the checkpoint
        before, whose errors it raises (see `wait`). `extra` is whatever else a resumed run wants
        to know, as JSON.
        """
        self.wait()
        facts = Manifest(
            step=step,
            samples=samples,
            grid=context.mesh.grid.by_axis(),
            tensors={},
            model=context.job.model.model_dump(mode="json"),
            extra=json.loads(json.dumps(extra or {}, allow_nan=False)),
        )
        if self._outgoing is None or self._outgoing.optimizer is not optimizer:
            self._outgoing = Outgoing(context, optimizer)
        self._outgoing.fill()
        job = self._job = _Job(Writer(self.root, facts))
        job.thread = threading.Thread(target=self._write, args=(job, self._outgoing), name="checkpoint", daemon=True)
        job.thread.start()

    def wait(self) -> None:
        """Wait for the checkpoint being written, if there is one.

        Raises on every rank, if it could not be written: DescriptionError with the reason and the
        remedy (NoSpaceError for want of space), CollectiveError if a peer died. Earlier checkpoints stay as they are.
        """
        job, self._job = self._job, None
        if job is None or job.thread is None:
            return
        job.thread.join()
        if job.error is not None:
            raise job.error

    def close(self) -> None:
        """Wait for what is being written; the last call."""
        self.wait()
        self._outgoing = None

    def _write(self, job: _Job, outgoing: Outgoing) -> None:
        """Write one checkpoint, in the background."""
        try:
            save(
                dict(outgoing.state),
                storage_writer=job.writer,
                planner=SavePieces(),
                process_group=self._team.group,
                no_dist=self._team.group is None,
            )
        except CheckpointException as error:
            job.error = self._explained(error)
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            job.error = CollectiveError(
                f"{self.mesh.where()}: checkpoint of step {job.writer.facts.step} "
                f"failed: a peer has probably died ({reason})"
            )
        except Exception as error:  # whatever it is, the thread that trains has to know
            job.error = error
        if job.writer.final is not None:
            self._useless.discard(job.writer.final)
            with suppress(OSError):  # old checkpoints that stay do no harm
                directory.retain(job.writer.final, self.keep, self._useless, self.best)
        elif job.writer.temporary is not None:
            shutil.rmtree(job.writer.temporary, ignore_errors=True)

    def _explained(self, error: CheckpointException) -> Exception:
        for rank, (cause, _) in sorted(error.failures.items()):
            if isinstance(cause, OSError):
                return _not_written(self.root, cause, f"rank {rank}: ")
        return RuntimeError(str(error))

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, on every rank as the first one sees them."""
        return self.from_first(lambda: [directory.step_of(path) for path in directory.newest_first(self.root)])

    def prefer(self, step: int) -> None:
        """Keep a complete checkpoint whatever its age, in place of the one that was kept so before."""
        self.best = step

        def retain() -> None:
            newest = next(iter(directory.newest_first(self.root)), None)
            if newest is not None:
                directory.retain(newest, self.keep, self._useless, step)

        self.from_first(retain)

    def discard_after(self, step: int) -> None:
        """Delete the checkpoints of later steps; none may be being written."""
        self.from_first(lambda: directory.discard_after(self.root, step))

    def from_first(self, make: Callable[[], T]) -> T:
        """Return on every rank what rank 0 made; its errors are raised on every rank.

        Raises RuntimeError until the last checkpoint was waited for: two threads on one group would take each other's
        words.
        """
        if self._job is not None:
            raise RuntimeError("a checkpoint may be being written: wait for it first")
        return self._team.from_first(make)

    def load_latest(
        self, context: Context, optimizer: Optimizer | None = None, *, most: int | None = None
    ) -> Loaded | None:
        """Load the newest checkpoint that is whole, on whatever grid it was saved.

        Without an optimizer only weights are loaded; `most` leaves out those of later steps. Returns None if there is
        no checkpoint at all. Raises DescriptionError if there are some but none is whole, or if the newest is of
        another model.
        """
        self.wait()
        found = self.from_first(lambda: directory.newest_first(self.root))
        wanted = [path for path in found if most is None or directory.step_of(path) <= most]
        remedy = "restore one from a copy, or train from the beginning in another directory"
        loaded = load_newest(wanted, context, optimizer, self._team, remedy=remedy)
        if loaded is not None:
            self._useless = set(loaded.useless)
        return loaded


def _not_written(root: Path, error: OSError, where: str = "") -> DescriptionError:
    remedy = REMEDIES.get(error.errno or 0)
    remedy = f"{remedy}, or choose another directory" if remedy else "choose another directory"
    problem = Problem(
        str(root),
        f"checkpoint cannot be written: {where}{error.strerror}; {remedy}; earlier checkpoints are as they were",
    )
    return (NoSpaceError if error.errno in REMEDIES else DescriptionError)([problem])
