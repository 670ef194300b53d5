"""The page of a run: a timeline of chosen ranks, drawn by plotly.

All events travel in the page, packed as arrays; a small script draws at most a few thousand
bars for the visible window and refines when the reader zooms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twin.pages.pipeline import bubble_rows, drawn
from twin.pages.shell import filled
from twin.trace.bubbles import WORDS, PipelineRun
from twin.trace.names import in_order
from twin.trace.palette import EVENTS, axis_colour


def lanes(events: pa.Table, rank_names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Pack events by rank and stream: names, colours by phase or axis, starts and ends in ms."""
    table = events.filter(pc.not_equal(events["kind"], "wait"))
    rank = table["rank"].to_numpy()
    columns = {
        c: np.array(table[c].to_pylist(), dtype=object) for c in ("stream", "name", "phase", "axis", "micro", "layer")
    }
    start, end, arrival = (table[c].to_numpy() / 1e6 for c in ("start_ns", "end_ns", "arrival_ns"))
    size = table["bytes"].to_numpy()
    order = in_order(columns["stream"].tolist())
    packed = []
    for number in dict.fromkeys(rank.tolist()):
        for stream in order:
            at = np.flatnonzero((rank == number) & (columns["stream"] == stream))
            if not len(at):
                continue
            at = at[np.argsort(start[at], kind="stable")]
            kinds = columns["phase"][at] if stream == "compute" else columns["axis"][at]
            words = sorted(set(columns["name"][at]))
            index = {word: i for i, word in enumerate(words)}
            packed.append(
                {
                    "rank": rank_names.get(number, f"rank {number}"),
                    "stream": stream,
                    "names": words,
                    "name": [index[w] for w in columns["name"][at]],
                    "kinds": sorted(set(kinds)),
                    "kind": [sorted(set(kinds)).index(k) for k in kinds] if len(set(kinds)) > 1 else [],
                    "phase": [p[:3] for p in columns["phase"][at]] if stream != "compute" else [],
                    "layer": [-1 if v is None else int(v) for v in columns["layer"][at]],
                    "micro": [-1 if v is None else int(v) for v in columns["micro"][at]],
                    "start": np.round(start[at], 6).tolist(),
                    "end": np.round(end[at], 6).tolist(),
                    "skew": np.round((start - arrival)[at], 6).tolist() if stream != "compute" else [],
                    "megabytes": np.round(size[at] / 1e6, 3).tolist() if stream != "compute" else [],
                }
            )
    return packed


def timeline_html(
    events: pa.Table,
    rank_names: Mapping[int, str],
    title: str,
    facts: Sequence[tuple[str, str]] = (),
    pipeline: PipelineRun | None = None,
) -> str:
    """Return the page: title, a table of facts, the pipeline if there is one, the timeline."""
    axes = dict.fromkeys(a for a in events["axis"].unique().to_pylist() if a)
    colours = {**EVENTS, **{axis: axis_colour(axis) for axis in axes}}
    data = {"lanes": lanes(events, rank_names), "colours": colours}
    words: dict[str, Any] = {}
    if pipeline is not None:
        data["pipeline"] = drawn(pipeline)
        words = {"bubbles": bubble_rows(pipeline), "bubbles_head": ["percent of the step", *WORDS.values()]}
    return filled("twin.pages", "timeline.html", title=title, facts=facts, data=data, plotly=True, **words)
