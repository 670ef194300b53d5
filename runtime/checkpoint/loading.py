"""Load a checkpoint on whatever grid it was saved; reads only.

Nothing reaches the model before all ranks have read and verified their parts of it, so that no rank goes on from
another step than the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load

from runtime.checkpoint.fit import check_checkpoint
from runtime.checkpoint.host import Incoming
from runtime.checkpoint.manifest import Manifest, parse, read_text
from runtime.checkpoint.planner import LoadPieces
from runtime.checkpoint.storage import Reader
from runtime.checkpoint.team import Team
from runtime.checkpoint.tensor_file import UnusableFileError
from runtime.step.context import Context
from runtime.step.optimizer import Optimizer
from twin.description.problems import DescriptionError, Problem


@dataclass(frozen=True)
class Loaded:
    """What was loaded, and what was passed over."""

    step: int
    """Optimizer steps done."""
    samples: int
    """Sequences consumed."""
    extra: dict[str, Any]
    """As given when it was saved."""
    grid: dict[str, int]
    """It was saved on."""
    path: Path
    rejected: tuple[str, ...] = ()
    """A line for each newer checkpoint that could not be used: which file, and why."""
    useless: frozenset[Path] = frozenset()
    """Those."""


def load_newest(
    newest_first: Iterable[Path], context: Context, optimizer: Optimizer | None, team: Team, *, remedy: str
) -> Loaded | None:
    """Load the first of these checkpoints that is whole; None if there are none.

    Every rank must call it with the same. Without an optimizer only weights are loaded. Raises DescriptionError if
    none is whole, with the remedy, or if the first that is whole is of another model.
    """
    rejected: list[tuple[Path, str]] = []
    for path in newest_first:
        try:
            manifest = _load(path, context, optimizer, team)
        except UnusableFileError as error:
            rejected.append((path, str(error)))
            continue
        lines = tuple(f"{reason}; {path.name} is passed over" for path, reason in rejected)
        useless = frozenset(path for path, _ in rejected)
        return Loaded(manifest.step, manifest.samples, manifest.extra, manifest.grid, path, lines, useless)
    if rejected:
        problems = [Problem(path.name, reason) for path, reason in rejected]
        root = rejected[0][0].parent
        raise DescriptionError([*problems, Problem("", remedy)], f"no checkpoint in {root} is usable")
    return None


def _load(path: Path, context: Context, optimizer: Optimizer | None, team: Team) -> Manifest:
    """Load one checkpoint; raises UnusableFileError on every rank if any rank cannot."""
    # one rank reads the manifest for all: fewer readers, and all judge the same text
    manifest = parse(team.from_first(lambda: read_text(path)), path)
    check_checkpoint(manifest, context, path)
    incoming = Incoming(context, optimizer)
    try:
        load(
            dict(incoming.state),
            storage_reader=Reader(path, manifest),
            planner=LoadPieces(),
            process_group=team.group,
            no_dist=team.group is None,
        )
    except CheckpointException as error:
        # raised on all ranks alike, after all have read
        causes = [cause for _, (cause, _) in sorted(error.failures.items())]
        strange = [cause for cause in causes if not isinstance(cause, UnusableFileError)]
        if strange:
            raise RuntimeError(str(error)) from strange[0]
        raise causes[0] from None
    incoming.apply(manifest.step)
    return manifest
