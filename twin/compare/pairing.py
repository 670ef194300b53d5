"""Ops of two runs joined by their ids, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.compare.errors import PairedRun
from twin.compare.side import Side
from twin.compare.stages import Stage
from twin.compare.steps import OpFacts, Steps
from twin.description.problems import fail

MIN_PAIRED = 0.5
"""Of the ops of either trace; below that they are of different programs."""
SIDES = ("the first trace", "the second trace")


@dataclass(frozen=True)
class Unpaired:
    """Ops that only one trace has; those of a pipeline begin with their stage, such as `stage1/`."""

    predicted: tuple[str, ...]
    measured: tuple[str, ...]


@dataclass(frozen=True)
class PairedStage:
    """A stage that both runs have: the compared ranks of it, and its ops."""

    name: str
    """As people read it; empty where all ranks have one role."""
    predicted: PairedRun
    measured: PairedRun
    paired: Mapping[str, None]
    """Ids of the ops that both have."""
    unpaired: Unpaired
    resized: tuple[str, ...]
    """Ids of paired ops that have other bytes or flops in the second run."""

    def has(self, op: OpFacts) -> bool:
        """Tell whether both runs have an op."""
        return op.op in self.paired

    @property
    def weights(self) -> list[int]:
        """Number of ranks that each compared row stands for."""
        return [int(weight) for weight in self.predicted.weights]


def common_ranks(sides: Sequence[Side]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the ranks that both runs have, and what is to be said of others."""
    missing = [np.flatnonzero(side.place < 0) for side in sides]
    ranks = np.flatnonzero((sides[0].place >= 0) & (sides[1].place >= 0))
    if not len(ranks):
        raise fail("ranks", "the traces have no rank in common")
    warnings = [
        f"{len(gone)} of {len(side.place)} ranks are not in {side.origin}, such as rank {gone[0]}; they are left "
        "out on both sides, and the step may be longer than what is compared"
        for side, gone in zip(sides, missing, strict=True)
        if len(gone)
    ]
    return ranks, warnings


def paired_stages(first: Side, second: Side, ranks: NDArray[np.int64]) -> list[PairedStage]:
    """Pair the stages of two runs of one job: each rank's ops with those of the role that it has."""
    return [
        _paired(ours, theirs, (first.place[own], second.place[own]))
        for ours, theirs in _both(first, second)
        if len(own := ranks[np.isin(ranks, ours.ranks)])
    ]


def _both(first: Side, second: Side) -> Iterator[tuple[Stage, Stage]]:
    theirs = {stage.number: stage for stage in second.stages}
    for stage in first.stages:
        if stage.number in theirs:
            yield stage, theirs[stage.number]


def _paired(ours: Stage, theirs: Stage, places: tuple[NDArray[np.int64], NDArray[np.int64]]) -> PairedStage:
    # ranks that one row stands for on both sides are the same rank many times
    rows, weights = np.unique(places, axis=1, return_counts=True)
    known = [{op.op: op for op in stage.steps.ops} for stage in (ours, theirs)]
    paired = {name: None for name in known[0] if name in known[1]}
    _check(known[0], known[1], paired, ours.name)
    runs = [
        PairedRun(stage.steps, of, weights, _columns(stage.steps, paired))
        for stage, of in zip((ours, theirs), rows, strict=True)
    ]
    alone = [tuple(ours.path + name for name in one if name not in other) for one, other in (known, known[::-1])]
    resized = tuple(name for name in paired if not _same_size(known[0][name], known[1][name]))
    return PairedStage(ours.name, runs[0], runs[1], paired, Unpaired(alone[0], alone[1]), resized)


def _check(ours: Mapping[str, OpFacts], theirs: Mapping[str, OpFacts], paired: Mapping[str, None], stage: str) -> None:
    """Refuse programs that share too little, and ops that are not the same thing in both."""
    of = f" of {stage}" if stage else ""
    if len(paired) < MIN_PAIRED * max(len(ours), len(theirs)):
        raise fail(
            "ops",
            f"only {len(paired)} of {len(ours)} and {len(theirs)} ops{of} have the same names; the traces "
            "are of different programs",
        )
    for name in paired:
        if (a := _sort(ours[name])) != (b := _sort(theirs[name])):
            raise fail(name + of, f"is {a} in the first trace and {b} in the second: they are of different programs")


def _sort(op: OpFacts) -> str:
    return f"a {op.kind} on {op.stream}" + (f" over {op.axis}" if op.axis else "") + f" in phase {op.phase}"


def _same_size(a: OpFacts, b: OpFacts) -> bool:
    return bool(np.allclose((a.bytes, a.flops), (b.bytes, b.flops), rtol=1e-6, atol=0.5))


def _columns(steps: Steps, paired: Mapping[str, None]) -> NDArray[np.int64]:
    place = {op.op: i for i, op in enumerate(steps.ops) if op.kind != "wait"}
    return np.array([place[name] for name in paired if name in place], dtype=np.int64)
