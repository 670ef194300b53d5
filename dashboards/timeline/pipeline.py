"""The pipeline of a run, read off its events: passes and bubbles of every rank that has events."""

from __future__ import annotations

import numpy as np

from dashboards.events import Events
from dashboards.timeline.step import Step
from twin.trace.bubbles import PipelineRun
from twin.trace.passes import PassName, RankOps, numbered, pass_of

NO_LAYER = 1 << 30


def pipeline_of(events: Events, step: Step) -> PipelineRun | None:
    """Return the passes of one step of a run by stage and rank; None if its ops belong to no pipeline.

    Ranks whose first chunk begins with the same layer are of one stage. Ranks without passes are left out.
    """
    found = [pass_of(name) for name in step.names]
    if all(isinstance(one, int) for one in found):
        return None
    ranks = [(rank, step.rows_of(rank)) for rank in step.ranks]
    passed = [(rank, _ops(events, step, found, at), _first_layer(events, step, found, at)) for rank, at in ranks]
    passed = [(rank, ops, layer) for rank, ops, layer in passed if ops.names]
    layers = sorted({layer for _, _, layer in passed})
    if len(layers) < 2:
        return None  # micro-batches, but no stages
    staged = sorted(((layers.index(layer), rank, ops) for rank, ops, layer in passed), key=lambda one: one[:2])
    return PipelineRun.of(staged, step.length)


def _ops(events: Events, step: Step, found: list[PassName | int], at: slice) -> RankOps:
    """Columns of one rank."""
    names, number = numbered(found, step.base[at].astype(np.int64))
    row = step.row[at]
    arrival = step.start[at] - (events.start_ns[row] - events.arrival_ns[row]) / 1e9
    kind = events.kind
    compute, collective = kind.are("compute")[row], kind.are("collective")[row]
    return RankOps(names, number, compute, collective, arrival, step.start[at], step.end[at])


def _first_layer(events: Events, step: Step, found: list[PassName | int], at: slice) -> int:
    """Return the first layer of a rank's first chunk."""
    first = np.array([isinstance(one, PassName) and one.chunk == 0 for one in found], dtype=bool)
    layer = events.layer[step.row[at]]
    there = first[step.base[at]] & (layer >= 0)
    return int(layer[there].min()) if there.any() else NO_LAYER
