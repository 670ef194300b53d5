"""The stages of a run: ranks of one role each, which run the same program, and the steps that all of them have.

A job without a pipeline has one stage of all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from twin.compare.kinds import is_message
from twin.compare.steps import Nanoseconds, Steps, Times, read_steps
from twin.description.problems import fail
from twin.schedule.communicator import Role

SEND = "send"
"""Last word of the name of a message at its sender."""


@dataclass(frozen=True)
class Stage:
    """A role whose ranks have events."""

    number: int
    """Of the role, from 0."""
    name: str
    """As people read it; empty where all ranks have one role."""
    ranks: Nanoseconds
    """All ranks of the job that have the role, ascending."""
    steps: Steps

    @property
    def path(self) -> str:
        """What stands before ids of its ops where those of other stages are too."""
        return self.name.replace(" ", "") + "/" if self.name else ""


def read_stages(events: pa.Table, roles: Sequence[Role], origin: str) -> tuple[Stage, ...]:
    """Arrange a checked event table by role; raises DescriptionError if there is no step that is whole in all."""
    if len(roles) == 1:
        return (Stage(0, "", roles[0].ranks, read_steps(events, origin)),)
    rank = events.column("rank").to_numpy()
    known = np.concatenate([role.ranks for role in roles])
    if strange := rank[~np.isin(rank, known)][:1].tolist():
        raise fail(origin, f"has events of a rank that a job of {len(known)} ranks does not have", strange[0])
    owner = np.zeros(int(known.max()) + 1, dtype=np.int64)
    for number, role in enumerate(roles):
        owner[role.ranks] = number
    stages = []
    for number in np.unique(owner[rank]).tolist():
        role, name = roles[number], name_of(roles[number])
        steps = read_steps(_of_ranks(events, role.ranks), f"{origin}, {name}")
        stages.append(Stage(number, name, role.ranks, steps))
    if not stages:
        raise fail(origin, "has no events")
    kept = _common_steps(stages, origin)
    lost = sorted({number for stage in stages for number in stage.steps.times} - set(kept))
    dropped = tuple(f"step {number} of {origin} is dropped: it is not whole in all stages" for number in lost)
    first = replace(stages[0].steps, warnings=(*stages[0].steps.warnings, *dropped))
    return with_steps([replace(stages[0], steps=first), *stages[1:]], kept)


def _of_ranks(events: pa.Table, ranks: Nanoseconds) -> pa.Table:
    """Take the events of some ranks, and of the ids of ops those that they have."""
    part = events.filter(pa.array(np.isin(events.column("rank").to_numpy(), ranks)))
    place = part.column_names.index("op")
    return part.set_column(place, pa.field("op", pa.string(), nullable=False), part.column("op").cast(pa.string()))


def name_of(role: Role) -> str:
    """Name a role for people.

    >>> name_of(Role("stage3", np.arange(2))), name_of(Role("encoder", np.arange(2)))
    ('stage 3', 'encoder')
    """
    number = role.name.removeprefix("stage")
    return f"stage {number}" if number.isdigit() and number != role.name else role.name


def _common_steps(stages: Sequence[Stage], origin: str) -> list[int]:
    """Return the steps that are whole in all stages."""
    count = Counter(number for stage in stages for number in stage.steps.times)
    found = sorted(number for number, times in count.items() if times == len(stages))
    if not found:
        dropped = "; ".join(warning for stage in stages for warning in stage.steps.warnings)
        raise fail(origin, "has no step that is whole in all stages" + (f"; {dropped}" if dropped else ""))
    return found


def with_steps(stages: Sequence[Stage], kept: Sequence[int], *, from_zero: bool = False) -> tuple[Stage, ...]:
    """Keep some steps, each of which lasts from the first begin in any stage, or from zero, to the last end."""
    spans = {number: span_of([stage.steps.times[number] for stage in stages], from_zero=from_zero) for number in kept}
    return tuple(
        replace(
            stage,
            steps=replace(
                stage.steps,
                times={number: replace(stage.steps.times[number], span_ns=spans[number]) for number in kept},
            ),
        )
        for stage in stages
    )


def span_of(several: Sequence[Times], *, from_zero: bool = False) -> tuple[int, int]:
    """Return when the first rank of any stage began, and when the last one ended.

    A prediction begins at zero (`from_zero`), with what the host does before the first op: no event shows it.
    """
    begin = 0 if from_zero else min(int(t.arrival.min()) for t in several)
    return begin, max(int(t.end.max()) for t in several)


def too_early_across_ns(stages: Sequence[Stage], number: int) -> int:
    """By how much members of a group start before the last one came, at most, in one step of a pipeline.

    A collective has the same name on all members. A send and the receive at its other end have not: between two ranks
    messages of a stream come in the order in which they were sent.
    """
    last: dict[tuple[str, int, str], int] = {}
    begun: list[tuple[tuple[str, int, str], int]] = []
    lowest = _lowest_ranks(stages)
    for stage in stages:
        times, columns = stage.steps.times[number], stage.steps.columns("collective").tolist()
        for row, rank in enumerate(stage.steps.ranks.tolist()):
            seen: Counter[tuple[str, bool]] = Counter()
            for column in columns:
                op, group = stage.steps.ops[column], int(stage.steps.group[row, column])
                name = op.op
                if is_message(op.name):
                    up = (rank == lowest[op.stream, group]) == op.name.endswith(SEND)
                    name = f"{'up' if up else 'down'} {seen[op.stream, up]}"
                    seen[op.stream, up] += 1
                key = (op.stream, group, name)
                last[key] = max(last.get(key, 0), int(times.arrival[row, column]))
                begun.append((key, int(times.start[row, column])))
    return max((last[key] - start for key, start in begun), default=0)


def _lowest_ranks(stages: Sequence[Stage]) -> dict[tuple[str, int], int]:
    """Return the smallest rank of each group of each stream."""
    found: dict[tuple[str, int], int] = {}
    for stage in stages:
        for column in stage.steps.columns("collective").tolist():
            stream = stage.steps.ops[column].stream
            for rank, group in zip(stage.steps.ranks.tolist(), stage.steps.group[:, column].tolist(), strict=True):
                found[stream, group] = min(found.get((stream, group), rank), rank)
    return found
