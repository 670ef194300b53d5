"""Errors of single ops: predicted against the median over measured steps, rank by rank.

Stages of a pipeline have ops of their own. Figures of a group are then those of one rank of each stage, together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twin.compare.account import skew_of
from twin.compare.steps import OpFacts, Steps, Times

Floats = NDArray[np.float64]
By = Literal["all", "kind", "axis", "phase", "name", "stage"]
Part = Literal["compute", "collective"]
MICRO = re.compile(r"micro\d+/")
WORST_OPS = 10


@dataclass(frozen=True)
class PairedRun:
    """One side of a comparison: paired ops of the compared ranks, in the other side's order."""

    steps: Steps
    rows: NDArray[np.int64]
    """Rows of the compared ranks, or of classes of them."""
    weights: NDArray[np.int64]
    """Number of ranks that each row stands for."""
    columns: NDArray[np.int64]
    """Column of each paired compute and collective."""


@dataclass(frozen=True)
class Samples:
    """Seconds of paired ops of one stage, matrices (rows, ops)."""

    stage: str
    """As people read it; empty where all ranks have one role."""
    ops: tuple[OpFacts, ...]
    weights: NDArray[np.int64]
    """Number of ranks that each row stands for."""
    predicted: Floats
    measured: Floats
    """Computes as long as they run; collectives from when their last member came."""
    predicted_skew: Floats
    measured_skew: Floats
    """Time that collectives waited for their last member; zero for computes."""


@dataclass(frozen=True)
class ErrorGroup:
    """Ops of one sort. Seconds are of a rank and a step, mean over ranks; of stages their sum.

    Relative errors are |predicted − measured| / measured of single ops on single ranks, None where
    nothing was measured to take any time.
    """

    part: Part
    by: By
    name: str
    ops: int
    """Of one rank in one step; of one rank of each stage."""
    predicted_seconds: float
    measured_seconds: float
    median_error: float | None
    p90_error: float | None
    bias: float | None
    """Predicted total over measured total, less one."""
    predicted_skew_seconds: float
    measured_skew_seconds: float


@dataclass(frozen=True)
class OpError:
    """One op, mean over ranks."""

    op: str
    part: Part
    predicted_seconds: float
    measured_seconds: float
    stage: str = ""
    """Whose op it is; empty where all ranks have one role."""


def samples(stage: str, predicted: PairedRun, measured: PairedRun) -> Samples:
    """Take the durations of paired ops; of several steps their median."""
    ops = tuple(predicted.steps.ops[i] for i in predicted.columns)
    ours, theirs = (_median(run, lambda _, t: t.end - t.start) for run in (predicted, measured))
    collective = np.array([op.kind == "collective" for op in ops], dtype=bool)
    skews = [np.where(collective, _median(run, skew_of), 0.0) for run in (predicted, measured)]
    return Samples(stage, ops, predicted.weights, ours, theirs, *skews)


def _median(run: PairedRun, what: Callable[[Steps, Times], NDArray[np.int64]]) -> Floats:
    found = [what(run.steps, times.of(run.rows))[:, run.columns] for times in run.steps.times.values()]
    return np.asarray(np.median(found, axis=0) * 1e-9, dtype=np.float64)


def groups(found: Sequence[Samples]) -> list[ErrorGroup]:
    """Sum up errors of all ops of all stages: by kind, by axis, by phase, by name, and by stage if there are several.

    Computes stand before collectives, and what takes long before what does not.
    """
    sorts: dict[By, Callable[[OpFacts], str]] = {
        "all": lambda _: "all",
        "kind": lambda op: op.work,
        "axis": lambda op: op.axis,
        "phase": lambda op: op.phase,
        "name": lambda op: MICRO.sub("", op.name),
    }
    if any(stage.stage for stage in found):
        sorts["stage"] = lambda _: ""
    members: dict[tuple[Part, By, str], list[list[int]]] = {}
    for number, stage in enumerate(found):
        for by, sort in sorts.items():
            for column, op in enumerate(stage.ops):
                part = part_of(op)
                if part == "collective" or by != "axis":
                    key = part, by, stage.stage if by == "stage" else sort(op)
                    members.setdefault(key, [[] for _ in found])[number].append(column)
    summed = [_group(*key, found, columns) for key, columns in members.items()]
    return sorted(summed, key=lambda g: (list(sorts).index(g.by), g.part != "compute", -g.measured_seconds))


def part_of(op: OpFacts) -> Part:
    """Tell whether an op that is no wait computes or communicates."""
    return "collective" if op.kind == "collective" else "compute"


def _group(part: Part, by: By, name: str, found: Sequence[Samples], columns: Sequence[Sequence[int]]) -> ErrorGroup:
    """Sum up chosen columns of each stage."""
    errors, weights, totals = [], [], np.zeros(4)
    for stage, own in zip(found, columns, strict=True):
        chosen = [m[:, own] for m in (stage.predicted, stage.measured, stage.predicted_skew, stage.measured_skew)]
        took = chosen[1] > 0
        errors.append(np.abs(chosen[0][took] / chosen[1][took] - 1.0))
        weights.append(np.broadcast_to(stage.weights[:, None], took.shape)[took])
        totals += [float(np.average(m.sum(axis=1), weights=stage.weights)) for m in chosen]
    error = np.concatenate(errors)
    middle, most = (
        np.quantile(error, (0.5, 0.9), weights=np.concatenate(weights), method="inverted_cdf").tolist()
        if error.size
        else (None, None)
    )
    predicted, measured, *skews = totals.tolist()
    return ErrorGroup(
        part,
        by,
        name,
        sum(len(own) for own in columns),
        predicted,
        measured,
        middle,
        most,
        predicted / measured - 1.0 if measured > 0 else None,
        skews[0],
        skews[1],
    )


def worst_ops(found: Sequence[Samples]) -> list[OpError]:
    """Return the ops that are furthest off in seconds, mean over ranks, furthest first."""
    every: list[OpError] = []
    for stage in found:
        predicted, measured = (np.average(m, axis=0, weights=stage.weights) for m in (stage.predicted, stage.measured))
        order = np.argsort(-np.abs(predicted - measured), kind="stable")[:WORST_OPS]
        every += [
            OpError(stage.ops[i].op, part_of(stage.ops[i]), float(predicted[i]), float(measured[i]), stage.stage)
            for i in order
        ]
    return sorted(every, key=lambda op: -abs(op.predicted_seconds - op.measured_seconds))[:WORST_OPS]
