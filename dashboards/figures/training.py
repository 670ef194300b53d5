"""Curves of trainings: of many steps the least and the largest of each piece, so that no spike is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboards.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from dashboards.events import Floats
from dashboards.parts import escape, finished, seconds_ticks
from dashboards.training.happenings import Happening
from dashboards.training.health import Health, health_of
from dashboards.training.record import Record

MAX_POINTS = 1200
"""Of a curve: more than there are pixels would not be seen, and slow."""
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY)
DASHES = ("solid", "dot", "dash", "dashdot")
SYMBOLS = {
    "started again": ("hourglass", PURPLE),
    "went back": ("arrow-left", VERMILION),
    "warning": ("x", ORANGE),
    "stopped": ("square", SKY),
}
"""Of what happened to a training, on the curve of its loss."""
PANELS = {
    "loss": "loss, nats per token",
    "tokens_per_second": "tokens/s",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
    "model_flops_utilisation": "MFU, share of peak",
    "memory_bytes": "memory of rank 0",
    "seconds": "time of a step",
}

CORNERS = ("top right", "bottom right", "top left", "bottom left")
"""Where the words of a predicted rate stand beside its line."""


@dataclass(frozen=True)
class Curve:
    """A training to be drawn."""

    label: str
    record: Record
    predicted_rate: float | None = None
    """Tokens per second."""
    checkpoints: tuple[int, ...] = ()
    happenings: tuple[Happening, ...] = ()
    name: str = ""
    """What addresses call it."""
    job: Mapping[str, Any] = field(default_factory=dict)
    ended: str = ""
    """How it was stopped before its last step."""
    predicted_for: str = ""
    """The machine that the rate is of, if it is another one."""

    @cached_property
    def health(self) -> Health:
        """What is well, and what is not."""
        return health_of(self.record, self.predicted_rate, self.warnings, self.predicted_for)

    @property
    def words(self) -> str:
        """Which training it is, and whether it is healthy."""
        return f"{self.label}. {self.health.words}"

    @property
    def warnings(self) -> int:
        """Count the warnings of `--watch`."""
        return sum(one.what == "warning" for one in self.happenings)


def thinned(x: Floats, y: Floats, most: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """Keep the least and the largest of each of `most / 2` pieces, in order; all points if they are few."""
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    if len(y) <= most:
        return x, y
    edges = np.linspace(0, len(y), most // 2 + 1).astype(int)
    low = np.array([a + int(y[a:b].argmin()) for a, b in pairwise(edges)])
    high = np.array([a + int(y[a:b].argmax()) for a, b in pairwise(edges)])
    at = np.unique(np.concatenate([[0], low, high, [len(y) - 1]]))
    return x[at], y[at]


def along(record: Record, by: str) -> Floats:
    """Return where each step stands: its number, or hours of training before its end."""
    done = np.frombuffer(record.step, dtype=np.int64).astype(np.float64) + 1
    if by != "hours":
        return done
    # a line stands for all steps since the one before (`log_every`), in the mean; who watches may begin anywhere
    steps = np.maximum(np.diff(done, prepend=0.0), 0.0)
    if record.watched:
        steps[:1] = 1.0
    return np.asarray(np.nancumsum(np.frombuffer(record.columns["seconds"]) * steps) / 3600)


def panel(curves: Sequence[Curve], name: str, by: str) -> go.Figure | None:
    """Draw one figure of all trainings; None if none has it."""
    figure = go.Figure()
    for number, curve in enumerate(curves):
        values = np.frombuffer(curve.record.columns[name])
        x, y = thinned(along(curve.record, by), values)
        colour, dash = PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)]
        if len(y):
            line = {"color": colour, "dash": dash, "width": 1.5}
            # as lists, which a browser can add to; `meta` says of which training it is
            figure.add_scatter(
                x=x.tolist(), y=y.tolist(), mode="lines", name=escape(curve.label), line=line, meta=number
            )
        if name == "loss":
            _validation(figure, curve, by, colour)
            _marks(figure, curve, by)
        if name == "tokens_per_second" and curve.predicted_rate:
            where = f" for {escape(curve.predicted_for)}" if curve.predicted_for else ""
            label = f"predicted{where}, {curve.predicted_rate:,.0f}"
            # of rates that are close each has its words in a place of their own
            figure.add_hline(
                y=curve.predicted_rate,
                line_dash="dash",
                line_color=colour,
                annotation_text=label,
                annotation_position=CORNERS[number % len(CORNERS)],
                annotation_font_color=colour,
            )
    if not figure.data:
        return None
    figure.update_xaxes(title="hours" if by == "hours" else "steps done")
    figure.update_yaxes(title=PANELS[name], automargin=True, **_written(name))
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    return finished(
        figure, uirevision=f"training {by}", hovermode="x unified", showlegend=name == "loss", legend=legend
    )


def _written(name: str) -> dict[str, object]:
    looks: dict[str, dict[str, object]] = {
        "seconds": {**seconds_ticks(), "rangemode": "tozero"},
        "gradient_norm": {"rangemode": "tozero"},
        "memory_bytes": {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"},
        "model_flops_utilisation": {"tickformat": ".0%", "rangemode": "tozero"},
        "tokens_per_second": {"rangemode": "tozero", "tickformat": "~s"},
        "learning_rate": {"exponentformat": "power", "rangemode": "tozero"},
    }
    return looks.get(name, {})


def _validation(figure: go.Figure, curve: Curve, by: str, colour: str) -> None:
    """Points of held-out losses, each set with a symbol of its own."""
    for number, (name, found) in enumerate(curve.record.validation.items()):
        figure.add_scatter(
            x=_at(curve.record, [after for after, _ in found], by),
            y=[loss for _, loss in found],
            mode="lines+markers",
            name=escape(f"{curve.label}, {name.replace('_loss', '').replace('/', ' ')}"),
            line={"color": colour, "width": 1, "dash": "dot"},
            marker={"symbol": ("circle-open", "square-open", "diamond-open")[number % 3], "size": 8},
        )


def _marks(figure: go.Figure, curve: Curve, by: str) -> None:
    """Checkpoints and what happened, as marks on the curve of the loss."""
    kinds: list[tuple[str, list[tuple[int, str]], str, str]] = [
        ("checkpoint", [(step, f"checkpoint after {step:,} steps") for step in curve.checkpoints], "triangle-up", GREY)
    ]
    for what, (symbol, colour) in SYMBOLS.items():
        said = [(one.after_steps, escape(f"{what} {one.words}")) for one in curve.happenings if one.what == what]
        kinds.append((what, said, symbol, colour))
    loss = np.frombuffer(curve.record.columns["loss"])
    for name, found, symbol, colour in kinds:
        if found and len(loss):
            steps = [step for step, _ in found]
            place = np.clip(np.searchsorted(np.frombuffer(curve.record.step, dtype=np.int64), steps), 0, len(loss) - 1)
            figure.add_scatter(
                x=_at(curve.record, steps, by),
                y=loss[place],
                mode="markers",
                name=escape(f"{curve.label}, {name}"),
                marker={"symbol": symbol, "size": 9 if name == "checkpoint" else 11, "color": colour},
                text=[text for _, text in found],
                hovertemplate="%{text}<extra></extra>",
            )


def _at(record: Record, steps: Sequence[int], by: str) -> list[float]:
    """Return where so many steps done stand on the axis."""
    if by != "hours" or not len(record):
        return [float(step) for step in steps]
    hours = np.concatenate([[0.0], along(record, by)])
    done = np.frombuffer(record.step, dtype=np.int64) + 1
    return [float(hours[np.searchsorted(done, step, side="right")]) for step in steps]
