"""What was promised for a run to which everything happens (docs/howto/survive.md), and whether it was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.events import Kind

EVERY, MEMORY_EVERY = 20, 4
TOLERANCE = 1e-5
_COPY = 2 * MEMORY_EVERY
"""Steps since the last copy in memory, and those under way while it was made: it is waited for at the next."""
BOUND: dict[Kind, int] = {
    "rank": _COPY,
    "two ranks": _COPY,
    "host": _COPY,
    "stop": _COPY,
    "link": _COPY,
    "disk": 0,
    # the newest checkpoint is of no use, and no copy is left; another may have been under way
    "damage": 2 * EVERY + MEMORY_EVERY,
}
"""Steps that a run may have to do again each time that it is started again."""


@dataclass
class Story:
    """What happened to a run."""

    events: list[dict[str, Any]] = field(default_factory=list)
    """`kind`, `what`, `step` (when it happened), `lost` (most steps done again at once), `again` (all)."""
    longest_pause_seconds: float = 0.0


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    codes: Mapping[int, int | None]
    """Exit codes of the hosts' agents, the one first that was there longest; None: it had not ended."""
    checkpoint: int | None
    """Steps done in the newest checkpoint that can be read as a whole."""


def newest_whole(checkpoints: Path) -> int | None:
    """Return after how many steps the newest checkpoint is, if every number of it fits its checksum."""
    from runtime.checkpoint.directory import newest_first
    from runtime.checkpoint.manifest import read_manifest
    from runtime.checkpoint.storage import read_chunk
    from runtime.checkpoint.tensor_file import TensorFile, UnusableFileError

    for path in newest_first(checkpoints):
        try:
            manifest = read_manifest(path)
            for tensor in manifest.tensors.values():
                for chunk in tensor.chunks:
                    with TensorFile(path / chunk.file) as file:
                        read_chunk(file, chunk, tensor.dtype)
        except UnusableFileError:
            continue
        return manifest.step
    return None


def largest_difference(alone: Mapping[int, float], lines: Sequence[Mapping[str, Any]]) -> float:
    """Return by how much a loss is off from the undisturbed run's, relatively."""
    known = [line for line in lines if line["step"] in alone]
    return max((abs(line["loss"] / alone[line["step"]] - 1) for line in known), default=0.0)


def verdict(
    story: Story,
    kinds: Sequence[Kind],
    alone: Mapping[int, float],
    lines: Sequence[Mapping[str, Any]],
    steps: int,
    ending: Ending,
) -> list[str]:
    """Return what was promised and not kept; `kinds` are the events that were drawn."""
    problems = []
    if [line["step"] for line in lines] != list(range(steps)):
        problems.append("metrics do not have every step once")
    if (apart := largest_difference(alone, lines)) > TOLERANCE:
        problems.append(f"losses are {apart:.2g} from the undisturbed run's")
    problems += [
        f"{each['kind']} at step {each['step']} cost {each['lost']} steps, not {BOUND[each['kind']]} at most"
        for each in story.events
        if each["lost"] > BOUND[each["kind"]]
    ]
    if (happened := len(story.events)) < len(kinds):
        problems.append(f"{happened} of {len(kinds)} events happened: the run is too short for more")
    # those that came late may find that the others are done, and nobody to meet
    if next(iter(ending.codes.values()), None) != 0:
        problems.append(f"the agent that was there longest ended badly: {dict(ending.codes)}")
    late = [host for host, code in ending.codes.items() if code is None]
    problems += [f"the agent of host {host} has not ended" for host in late]
    if ending.checkpoint != steps:
        problems.append(f"the newest whole checkpoint is of step {ending.checkpoint}, not {steps}")
    return problems
