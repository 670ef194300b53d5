"""Training: losses, rates and memory of runs of `fourfold train`, over one another, read on while they write."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.catalog import Entry
from dashboards.figures.training import PANELS, Curve, panel
from dashboards.jobs import grid_words, job_in, key_of
from dashboards.page import Page, PageContext, Query, state
from dashboards.parts import card, graph, table
from dashboards.query import query_of
from dashboards.run_rows import tokens_per_second
from dashboards.training.happenings import FILES, happenings_of, run_of
from dashboards.training.health import health_of
from dashboards.training.record import Reader, ended
from twin.description.problems import DescriptionError

KINDS = ("training", "watch")
MAX_CURVES = 12
"""Trainings over one another: more cannot be told apart."""
LOOK_MILLISECONDS = 3000
"""Interval between two looks at what was written: a file's size is asked for, and its end read if it grew."""
HEIGHTS = {"loss": 420}
CHECKPOINT = re.compile(r"step-(\d{1,12})")
MAX_CHECKPOINTS = 500
READER = Reader()
"""What was read of trainings, one for all visitors of this process."""


def shown(context: PageContext, query: Query) -> Component:
    """Show the chosen trainings, or offer those that there are."""
    entries = [entry for entry in context.catalog.entries() if entry.kind in KINDS]
    chosen = chosen_of(entries, query)
    data = [{"value": entry.name, "label": entry.label} for entry in entries]
    by = "hours" if query.get("by") == "hours" else "steps"
    choices = dmc.Group(
        [
            dmc.MultiSelect(
                id=state("runs"),
                label="trainings",
                data=data,
                value=[entry.name for entry in chosen],
                searchable=True,
                maxValues=MAX_CURVES,
                limit=100,
                miw=420,
                clearable=True,
            ),
            dmc.Select(id=state("by"), label="along", data=["steps", "hours"], value=by, w=110, allowDeselect=False),
        ],
        align="end",
        mb="sm",
    )
    return html.Div(
        [
            choices,
            html.Div(drawn(context, chosen, by), id="training-drawn"),
            dcc.Interval(id="training-look", interval=LOOK_MILLISECONDS),
            dcc.Store(id="training-mark", data=mark(context, chosen, by)),
        ]
    )


def chosen_of(entries: list[Entry], query: Query) -> list[Entry]:
    """Return the trainings that an address names; the newest if it names none."""
    names = query["runs"].split(",") if query.get("runs") else [query.get("run", ""), query.get("other", "")]
    found = [entry for name in dict.fromkeys(names) for entry in entries if entry.name == name]
    return (found or entries[:1])[:MAX_CURVES]


def mark(context: PageContext, chosen: list[Entry], by: str) -> str:
    """Return what changes when anything is written: names, sizes and times of the files."""
    parts = [by]
    for entry in chosen:
        for name in FILES:
            try:
                stat = context.catalog.file(entry, name).stat()
                parts.append(f"{entry.name} {stat.st_size} {stat.st_mtime_ns}")
            except (OSError, DescriptionError):
                parts.append(entry.name)
    return "|".join(parts)


def drawn(context: PageContext, chosen: list[Entry], by: str) -> list[Component]:
    """Draw all figures of the chosen trainings, and say of each whether it is healthy."""
    if not chosen:
        words = "No training lies under this directory; `fourfold train JOB --out DIR` writes one."
        return [card("Nothing here yet", words)]
    curves, rows, said = [], [], []
    for entry in chosen:
        try:
            curve = curve_of(context, entry)
            curves.append(curve)
            health = health_of(curve.record, curve.predicted_rate, curve.warnings)
            rows.append(row(entry, curve) | {"state": ended(context.catalog, entry)})
            colour = "orange" if health.worries else "blue"
            said.append(dmc.Alert(f"{entry.label}. {health.words}", color=colour, variant="light", mb="xs"))
            if curve.record.bad_lines:
                note = f"{curve.record.bad_lines:,} lines of its metrics are none of ours and are left out."
                said.append(dmc.Text(f"{entry.label}: {note}", size="sm", mb="xs"))
        except DescriptionError as error:
            said.append(dmc.Alert(str(error), color="orange", variant="light", mb="xs", className="problem"))
    figures = [(name, panel(curves, name, by)) for name in PANELS]
    cards = {name: _figure_card(name, figure) for name, figure in figures if figure is not None}
    first = [cards.pop("loss")] if "loss" in cards else []
    rest = dmc.SimpleGrid(list(cards.values()), cols={"base": 1, "lg": 2}, spacing="md")
    listed = [card("Latest", "The last step of each.", table("training-table", rows, height=80 + 45 * len(rows)))]
    return [html.Div(said, role="status"), *first, *_happened_card(curves), rest, *(listed if rows else [])]


def _happened_card(curves: list[Curve]) -> list[Component]:
    """List what happened to the trainings, the latest first; nothing if nothing did."""
    rows = [
        {
            "training": curve.label,
            "after steps": one.after_steps,
            "what": one.what,
            "words": one.words,
            "time": one.time,
        }
        for curve in curves
        for one in reversed(curve.happenings)
    ]
    if not rows:
        return []
    counts = Counter(row["what"] for row in rows)
    words = ", ".join(f"{what} {count:,} time{'s' if count > 1 else ''}" for what, count in counts.items())
    columns = [
        {"field": name, "headerName": name, **({"minWidth": 420, "wrapText": True} if name == "words" else {})}
        for name in rows[0]
    ]
    height = min(90 + 45 * len(rows), 400)
    return [
        card(
            "What happened", f"{words[0].upper()}{words[1:]}.", table("training-happened", rows, columns, height=height)
        )
    ]


def _figure_card(name: str, figure: Any) -> Component:
    words = {
        "loss": "Lines: training; circles: held-out text; triangles: checkpoints; hourglasses: started again; arrows: "
        "went back to a checkpoint; crosses: warnings of --watch; squares: stopped by a signal.",
        "tokens_per_second": "Dashed: the rate that the twin predicts, where the same job was simulated.",
        "model_flops_utilisation": "Of the devices' peak, where the machine's description is of this device.",
    }.get(name, "")
    title = PANELS[name][0].upper() + PANELS[name][1:]
    return card(title, words, graph(f"training-{name}", figure, label=title, height=HEIGHTS.get(name, 280)))


def curve_of(context: PageContext, entry: Entry) -> Curve:
    """Read a training, and find what was predicted for its job. Raises DescriptionError."""
    record = READER.record(context.catalog, entry)
    happened = happenings_of(context.catalog, entry, record)
    return Curve(entry.label, record, predicted_rate(context, entry), checkpoints_of(context, entry), happened)


def predicted_rate(context: PageContext, entry: Entry) -> float | None:
    """Return the tokens per second of the newest prediction of the same job; None if there is none."""
    key = key_of(replace(entry, head=dict(run_of(context.catalog, entry))))
    for other in context.catalog.entries():
        if other.kind == "predicted" and key and key_of(other) == key:
            figures = other.head.get("figures")
            said = figures.get("tokens_per_second") if isinstance(figures, dict) else None
            step = figures.get("step_seconds") if isinstance(figures, dict) else None
            if isinstance(said, int | float):
                return float(said)
            return tokens_per_second(job_in(other), step if isinstance(step, float) else None)
    return None


def checkpoints_of(context: PageContext, entry: Entry) -> tuple[int, ...]:
    """Return after how many steps the checkpoints that are kept were written."""
    folder = context.catalog.file(entry, "checkpoints")
    if not folder.is_dir():
        return ()
    found = [CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()]
    return tuple(sorted(int(one[1]) for one in found if one))[-MAX_CHECKPOINTS:]


def row(entry: Entry, curve: Curve) -> dict[str, Any]:
    """Describe the last step of a training."""
    record, job = curve.record, job_in(entry)
    last = {name: float(column[-1]) for name, column in record.columns.items() if len(column)}
    if not last:
        return {"training": entry.label, "steps": 0}
    share = last["model_flops_utilisation"]
    return {
        "training": entry.label,
        "grid": grid_words(job),
        "steps": record.step[-1] + 1,
        "loss": last["loss"],
        "gradient norm": last["gradient_norm"],
        "learning rate": last["learning_rate"],
        "step (s)": last["seconds"],
        "tokens/s": last["tokens_per_second"],
        "predicted tokens/s": curve.predicted_rate,
        "of peak (%)": None if math.isnan(share) else 100 * share,
        "memory (B)": last["memory_bytes"],
        "warnings": curve.warnings,
    }


def look(context: PageContext, _ticks: Any, runs: Any, by: Any, known: Any, search: Any) -> Any:
    """Draw again if another training is chosen, or anything was written."""
    query = {**query_of(search), "runs": ",".join(map(str, runs or []))[:2000]}
    entries = [entry for entry in context.catalog.entries() if entry.kind in KINDS]
    along = "hours" if by == "hours" else "steps"
    chosen = chosen_of(entries, query)
    new = mark(context, chosen, along)
    return (no_update, no_update) if new == known else (drawn(context, chosen, along), new)


def register(app: Dash, context: PageContext) -> None:
    """A look every few seconds, and at once when the choice changes."""
    app.callback(
        Output("training-drawn", "children"),
        Output("training-mark", "data"),
        Input("training-look", "n_intervals"),
        Input(state("runs"), "value"),
        Input(state("by"), "value"),
        State("training-mark", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(look, context))


PAGE = Page("/training", "Training", shown, register, needs="runs", kinds=KINDS)
