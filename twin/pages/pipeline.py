"""The picture of a pipeline on a page: a lane a stage, a box a pass with the number of its micro-batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from twin.trace.bubbles import PipelineRun, StageRun
from twin.trace.palette import pass_colour
from twin.trace.passes import KINDS, PASS_KINDS


def drawn(pipeline: PipelineRun) -> dict[str, Any]:
    """Pack the passes for the page's script: times in ms, colours by kind and chunk, and the legend."""
    chunks = pipeline.chunks
    there = {(kind, int(c)) for s in pipeline.stages for kind, c in zip(s.passes.kind, s.passes.chunk, strict=True)}
    shown = [(kind, chunk) for kind in KINDS for chunk in range(chunks) if (kind, chunk) in there]
    return {
        "lanes": [_lane(stage, chunks) for stage in pipeline.stages],
        "colours": {box_name(*box, chunks): pass_colour(*box, chunks) for box in shown},
        "legend": [
            {"words": PASS_KINDS[kind], "colours": [pass_colour(*box, chunks) for box in shown if box[0] == kind]}
            for kind in KINDS
            if any(box[0] == kind for box in shown)
        ],
        "micro_batches": pipeline.micro_batches,
        "step": round(1e3 * pipeline.step_seconds, 6),
    }


def box_name(kind: str, chunk: int, chunks: int) -> str:
    """Name a kind of pass, and its chunk if there are several.

    >>> box_name("F", 1, 2), box_name("F", 0, 1)
    ('F, chunk 1', 'F')
    """
    return f"{kind}, chunk {chunk}" if chunks > 1 else kind


def _lane(stage: StageRun, chunks: int) -> dict[str, Any]:
    passes = stage.passes
    names = [box_name(kind, chunk, chunks) for kind, chunk in zip(passes.kind, passes.chunk.tolist(), strict=True)]
    kinds = sorted(set(names))
    index = {name: i for i, name in enumerate(kinds)}
    return {
        "name": f"stage {stage.stage} · rank {stage.rank}",
        "kinds": kinds,
        "kind": [index[name] for name in names],
        "micro": passes.micro.tolist(),
        "start": np.round(1e3 * passes.start, 6).tolist(),
        "end": np.round(1e3 * passes.end, 6).tolist(),
        "computing": np.round(1e3 * passes.computing, 6).tolist(),
        **({"side": passes.side.tolist()} if passes.side.any() else {}),
    }


def bubble_rows(pipeline: PipelineRun) -> list[list[str]]:
    """Return the rows of a table: shares of the step in percent, the mean and stage by stage."""
    rows = [("mean", pipeline.mean), *((f"stage {stage.stage}", stage.bubbles) for stage in pipeline.stages)]
    return [
        [name, *(f"{100 * seconds / pipeline.step_seconds:.1f}" for seconds in bubbles.by_name().values())]
        for name, bubbles in rows
    ]
