"""The pipeline: a lane a stage, a box a pass with the number of its micro-batch; or a picture of too many."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from dashboards.figures.timeline_picture import placed, rows_of, spaced
from dashboards.parts import finished, seconds
from dashboards.timeline.raster import coverage, painted
from twin.description.units import counted
from twin.trace.bubbles import WORDS, PipelineRun, StageRun
from twin.trace.palette import pass_colour
from twin.trace.passes import KINDS, PASS_KINDS

MAX_BOXES = 4000
"""Up to so many passes, each is a box; of more a picture is drawn, which costs the same for any."""
MAX_LANES = 64
COLUMNS = 1400
"""Pixels of the picture."""
LANE_PIXELS = 26
WIDE = 0.86
ASIDE = (0.0, -WIDE / 4, WIDE / 4)
"""Of two passes at once one is drawn above the other."""
BORDER = "rgba(255, 255, 255, 0.7)"
"""Between boxes of one colour, on a white page and on a dark one."""


def lanes_of(run: PipelineRun) -> list[StageRun]:
    """Return the ranks that there is room for: all, or some evenly, the first and the last among them."""
    if len(run.stages) <= MAX_LANES:
        return list(run.stages)
    return [run.stages[i] for i in np.linspace(0, len(run.stages) - 1, MAX_LANES).round().astype(int)]


def height(run: PipelineRun) -> int:
    """Pixels that suit the number of lanes."""
    return 130 + LANE_PIXELS * len(lanes_of(run))


def pipeline(run: PipelineRun) -> tuple[go.Figure, str]:
    """Draw the passes of a step, and say in a sentence what is drawn."""
    shown = lanes_of(run)
    boxes = sum(len(stage.passes) for stage in shown)
    more = len(run.stages) - len(shown)
    if boxes <= MAX_BOXES:
        figure = go.Figure(_boxes(run, shown))
        words = "one box each; a number is its micro-batch's, and vanishes where it has no room: zoom in"
    else:
        figure = go.Figure(_legend(run))
        figure.update_layout(images=[_picture(run, shown)])
        words = "too many for boxes: colours are as high as passes are busy; name fewer ranks for boxes"
    figure.update_xaxes(title="seconds", range=[0.0, run.step_seconds], showgrid=False, zeroline=False)
    figure.update_yaxes(
        tickvals=list(range(len(shown))),
        ticktext=[f"stage {stage.stage} · rank {stage.rank}" for stage in shown],
        range=[len(shown) - 0.5, -0.5],
        fixedrange=True,
        automargin=True,
        showgrid=False,
        zeroline=False,
    )
    finished(
        figure,
        barmode="overlay",
        bargap=0,
        dragmode="zoom",
        uniformtext={"minsize": 8, "mode": "hide"},
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    several = f"{run.micro_batches:,} micro-batch{'es' if run.micro_batches > 1 else ''}"
    room = f" {left_out(more)}." if more else ""
    return figure, f"{boxes:,} passes of {several}, {words}.{room}"


def left_out(ranks: int) -> str:
    """Say how many ranks there is no room for.

    >>> left_out(1), left_out(1016)
    ('1 rank is left out; name ranks to see it', '1,016 ranks are left out; name ranks to see them')
    """
    is_left, them = ("is", "it") if ranks == 1 else ("are", "them")
    return f"{counted(ranks, 'rank')} {is_left} left out; name ranks to see {them}"


def bubble_table(run: PipelineRun) -> list[dict[str, Any]]:
    """Return rows of bubbles in percent of the step: the mean, then rank by rank."""
    named = [("mean", run.mean), *((f"stage {s.stage} · rank {s.rank}", s.bubbles) for s in lanes_of(run))]
    return [
        {"stage": name, **{WORDS[key]: round(100 * value / run.step_seconds, 2) for key, value in of.by_name().items()}}
        for name, of in named
    ]


def _kinds(run: PipelineRun) -> list[tuple[str, int]]:
    """Kinds of passes with their chunks, those that there are."""
    there = {(kind, int(chunk)) for s in run.stages for kind, chunk in zip(s.passes.kind, s.passes.chunk, strict=True)}
    return [(kind, chunk) for kind in KINDS for chunk in range(run.chunks) if (kind, chunk) in there]


def _name(kind: str, chunk: int, run: PipelineRun) -> str:
    words = {str(letter): word for letter, word in PASS_KINDS.items()}
    return words[kind] + (f", chunk {chunk}" if run.chunks > 1 else "")


def _boxes(run: PipelineRun, shown: list[StageRun]) -> list[go.Bar]:
    traces = []
    for kind, chunk in _kinds(run):
        name = _name(kind, chunk, run)
        lane, start, end, micro, words, width = [], [], [], [], [], []
        for place, stage in enumerate(shown):
            passes = stage.passes
            for i in np.flatnonzero((np.array(passes.kind) == kind) & (passes.chunk == chunk)).tolist():
                lane.append(place + ASIDE[side := int(passes.side[i])])
                width.append(WIDE if side == 0 else WIDE / 2)
                start.append(float(passes.start[i]))
                end.append(float(passes.end[i]))
                micro.append(str(passes.micro[i]))
                length, computing = float(passes.end[i] - passes.start[i]), float(passes.computing[i])
                words.append(
                    f"{name}<br>micro-batch {passes.micro[i]}<br>stage {stage.stage}, rank {stage.rank}<br>"
                    f"{seconds(length)}, {seconds(computing)} of it computing"
                )
        traces.append(
            go.Bar(
                y=lane,
                x=np.array(end) - np.array(start),
                base=start,
                orientation="h",
                width=width,
                name=name,
                marker={"color": pass_colour(kind, chunk, run.chunks), "line": {"width": 1, "color": BORDER}},
                text=micro,
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hoverinfo="text",
                hovertext=words,
            )
        )
    return traces


def _legend(run: PipelineRun) -> list[go.Bar]:
    """Empty bars, for the legend of a picture."""
    return [
        go.Bar(x=[None], y=[None], name=_name(*kind, run), marker_color=pass_colour(*kind, run.chunks))
        for kind in _kinds(run)
    ]


def _picture(run: PipelineRun, shown: list[StageRun]) -> go.layout.Image:
    kinds = _kinds(run)
    number = {kind: i for i, kind in enumerate(kinds)}
    lane = np.repeat(np.arange(len(shown)), [len(stage.passes) for stage in shown])
    kind = np.array(
        [number[key, int(c)] for s in shown for key, c in zip(s.passes.kind, s.passes.chunk, strict=True)], dtype=int
    )
    start, end = (np.concatenate([getattr(stage.passes, name) for stage in shown]) for name in ("start", "end"))
    window = (0.0, run.step_seconds)
    shares = coverage(lane, kind, start, end, window, (len(kinds), len(shown), COLUMNS))
    colours = np.array([hex_to_rgb(pass_colour(*one, run.chunks)) for one in kinds], dtype=np.float32)
    rows, gap = rows_of(len(shown))
    return placed(spaced([painted(shares, colours, rows - gap)], len(shown), gap), window, len(shown))
