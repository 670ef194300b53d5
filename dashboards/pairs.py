"""Ops of two runs of one job, paired by their stable names; of a pipeline stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboards.events import Events, Floats
from dashboards.standing import EACH_ONE, Weights, per_event, quantile
from twin.compare.kinds import collective_kind, compute_kind
from twin.schedule.communicator import Role


@dataclass(frozen=True)
class Pairs:
    """Ops that both runs have; times are medians over ranks and steps, nanoseconds.

    A rank counts as often as it stands for ranks of the job.
    A collective counts from when its last member came.
    """

    op: tuple[str, ...]
    work: tuple[str, ...]
    """Kind of device work, or of collective."""
    axis: tuple[str, ...]
    """Empty for compute."""
    size: Floats
    """Flops of compute, bytes of collectives."""
    first_ns: Floats
    second_ns: Floats


def pairs_of(
    first: Events, second: Events, roles: Sequence[Role] = (), weights: tuple[Weights, Weights] = (EACH_ONE, EACH_ONE)
) -> Pairs:
    """Pair the computes and collectives of two runs: ranks of each role by themselves, where there are several.

    `weights` says of each run for how many ranks of the job each written one stands.
    """
    parts = roles if len(roles) > 1 else [None]
    ours, theirs = (
        {name: found for role in parts for name, found in _medians(events, role, counts).items()}
        for events, counts in zip((first, second), weights, strict=True)
    )
    names = [name for name in ours if name in theirs]
    rows = [ours[name][1] for name in names]
    compute = [first.kind[row] == "compute" for row in rows]
    return Pairs(
        op=tuple(names),
        work=tuple(
            compute_kind(first.name[row], first.phase[row])
            if is_compute
            else collective_kind(first.name[row], first.axis[row])
            for row, is_compute in zip(rows, compute, strict=True)
        ),
        axis=tuple(first.axis[row] for row in rows),
        size=np.where(compute, first.flops[rows], first.bytes[rows]),
        first_ns=np.array([ours[name][0] for name in names]),
        second_ns=np.array([theirs[name][0] for name in names]),
    )


def _medians(events: Events, role: Role | None, weights: Weights) -> dict[str, tuple[float, int]]:
    """For each op its median time, and a row that tells the rest; of one role if there are several."""
    wanted = ~events.kind.are("wait")
    if role is not None:
        wanted &= np.isin(events.rank, role.ranks)
    chosen, path = np.flatnonzero(wanted), "" if role is None else f"{role.name}/"
    base: dict[str, int] = {}
    number = np.array([base.setdefault(word.partition("/")[2], len(base)) for word in events.op.words] or [0])
    which = number[events.op.code[chosen]]
    duration = (events.end_ns - events.start_ns)[chosen]
    order = np.lexsort((duration, which))
    ends = np.flatnonzero(np.diff(which[order], append=-1)) + 1
    counts = per_event(events, weights)[chosen]
    found: dict[str, tuple[float, int]] = {}
    names, begin = list(base), 0
    for end in ends:
        at = order[begin:end]
        median = quantile(duration[at], counts[at], 0.5)
        found[path + names[int(which[order[begin]])]] = (median, int(chosen[order[begin]]))
        begin = int(end)
    return found
