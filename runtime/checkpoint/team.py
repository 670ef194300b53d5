"""The ranks of a mesh, talking about checkpoints over a process group, mostly one of their own.

The backend of that is gloo on every machine, so that a background thread may use it while the devices'
groups are at work. What goes over it is small: plans, verdicts, file names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from runtime.checkpoint.tensor_file import UnusableFileError
from runtime.parallel.collectives import CollectiveError
from runtime.parallel.mesh import Mesh
from twin.description.problems import DescriptionError

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """One rank's side of it."""

    rank: int
    group: dist.ProcessGroup | None
    """None if there is one rank only."""

    @classmethod
    def of(cls, mesh: Mesh, group: dist.ProcessGroup | None, *, timeout_seconds: float) -> Team:
        """Take a group, or make one; every rank of the mesh must call it."""
        if mesh.grid.ranks == 1:
            # one rank saves and loads alone on purpose; set here, since filters belong to all threads at once
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            return cls(mesh.rank, None)
        group = group or dist.new_group(
            list(range(mesh.grid.ranks)),
            timeout=timedelta(seconds=timeout_seconds),
            backend="gloo",
            use_local_synchronization=True,
            group_desc="checkpoint",
        )
        return cls(mesh.rank, group)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return on every rank what the first one made; its errors are raised on every rank.

        Raises CollectiveError if a peer was lost.
        """
        if self.group is None:
            return make()
        outcome: list[tuple[str, T | tuple[object, ...]] | None] = [None]
        if self.rank == 0:
            outcome = [_attempt(make)]
        try:
            dist.broadcast_object_list(outcome, group_src=0, group=self.group)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # of torch.distributed, which names neither rank nor op
            reason = str(error).strip().split("\n")[0]
            raise CollectiveError(
                f"rank {self.rank}: hearing what rank 0 says failed: a peer has probably died ({reason})"
            ) from error
        assert outcome[0] is not None
        kind, value = outcome[0]
        if kind == "made":
            return value  # type: ignore[return-value]  # what `make` returned on the first rank
        assert isinstance(value, tuple)
        raise _ERRORS[kind](*value)


def _attempt(make: Callable[[], T]) -> tuple[str, T | tuple[object, ...]]:
    try:
        return "made", make()
    except DescriptionError as error:
        return "problems", (error.problems, error.origin)
    except UnusableFileError as error:
        return "unusable", error.args
    except OSError as error:
        return "system", error.args


_ERRORS: dict[str, Callable[..., Exception]] = {
    "problems": DescriptionError,
    "unusable": UnusableFileError,
    "system": OSError,
}
