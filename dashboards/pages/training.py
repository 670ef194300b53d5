"""Training: losses, rates and memory of runs of `fourfold train`, over one another, read on while they write."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.catalog import Entry
from dashboards.figures.training import PANELS, Curve, panel
from dashboards.jobs import grid_words, job_in, key_of, machine_of, nearest_first, work_key
from dashboards.page import Page, PageContext, Query, state
from dashboards.parts import card, graph, reasons, table
from dashboards.query import query_of
from dashboards.run_rows import tokens_per_second
from dashboards.training.growth import Seen, grown, seen_of
from dashboards.training.happenings import FILES, happenings_of, run_of
from dashboards.training.record import Reader, ended
from twin.description.problems import DescriptionError
from twin.description.units import counted

KINDS = ("training", "watch")
MAX_CURVES = 12
"""Trainings over one another: more cannot be told apart."""
LOOK_MILLISECONDS = 3000
"""Interval between two looks at what was written: a file's size is asked for, and its end read if it grew. Longer where
a browser takes long to draw (`growing.js`)."""
HEIGHTS = {"loss": 420}
CHECKPOINT = re.compile(r"step-(\d{1,12})")
MAX_CHECKPOINTS = 500
ANEW = {"anew": True}
"""Said where all is drawn again: what waited to be added is in it."""
READER = Reader()
"""What was read of trainings, one for all visitors of this process."""


def shown(context: PageContext, query: Query) -> Component:
    """Show the chosen trainings, or offer those that there are."""
    listed = context.catalog.entries()
    entries = [entry for entry in listed if entry.kind in KINDS]
    chosen = chosen_of(entries, query)
    data = [{"value": entry.name, "label": entry.label} for entry in entries]
    by = "hours" if query.get("by") == "hours" else "steps"
    # before what they hold is read: what comes in between is seen at the next look
    files = mark(context, chosen, by, listed)
    curves = read(context, chosen, listed)
    known = seen_of(files, [one for one in curves if isinstance(one, Curve)])
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
            html.Div(drawn(curves, by), id="training-drawn"),
            dcc.Interval(id="training-look", interval=LOOK_MILLISECONDS),
            dcc.Store(id="training-mark", data=known.as_data()),
            dcc.Store(id="training-new", data=ANEW),
        ]
    )


def chosen_of(entries: list[Entry], query: Query) -> list[Entry]:
    """Return the trainings that an address names; the newest if it names none."""
    names = query["runs"].split(",") if query.get("runs") else [query.get("run", ""), query.get("other", "")]
    found = [entry for name in dict.fromkeys(names) for entry in entries if entry.name == name]
    return (found or entries[:1])[:MAX_CURVES]


def mark(context: PageContext, chosen: list[Entry], by: str, entries: list[Entry]) -> str:
    """Return what changes when anything is written: names, sizes and times of the files, and what is predicted."""
    parts = [by]
    for entry in chosen:
        for name in FILES:
            try:
                stat = context.catalog.file(entry, name).stat()
                parts.append(f"{entry.name} {stat.st_size} {stat.st_mtime_ns}")
            except (OSError, DescriptionError):
                parts.append(entry.name)
    predicted = [(entry.name, entry.changed) for entry in entries if entry.kind == "predicted"]
    return "|".join([*parts, f"{zlib.crc32(repr(predicted).encode()):08x}"])


def read(context: PageContext, chosen: list[Entry], entries: list[Entry]) -> list[Curve | DescriptionError]:
    """Read the chosen trainings, as far as they can be read; `entries` are all, among them those that predict."""
    found: list[Curve | DescriptionError] = []
    for entry in chosen:
        try:
            found.append(curve_of(context, entry, entries))
        except DescriptionError as error:
            found.append(error)
    return found


def drawn(curves: list[Curve | DescriptionError], by: str) -> list[Component]:
    """Draw all figures of the chosen trainings, and say of each whether it is healthy."""
    if not curves:
        words = "No training lies under this directory; `fourfold train JOB --out DIR` writes one."
        return [card("Nothing here yet", words)]
    there = [one for one in curves if isinstance(one, Curve)]
    said: list[Component] = []
    for one in curves:
        if isinstance(one, DescriptionError):
            said.append(dmc.Alert(reasons(one), color="orange", variant="light", mb="xs", className="problem"))
            continue
        said.append(dmc.Alert(id=_said(there.index(one)), variant="light", mb="xs", **verdict(one)))
        if number := one.record.bad_lines:
            what = "is none of ours and is" if number == 1 else "are none of ours and are"
            note = f"{counted(number, 'line')} of its metrics {what} left out."
            said.append(dmc.Text(f"{one.label}: {note}", size="sm", mb="xs"))
    figures = [(name, panel(there, name, by)) for name in PANELS]
    cards = {name: _figure_card(name, figure) for name, figure in figures if figure is not None}
    first = [cards.pop("loss")] if "loss" in cards else []
    rest = dmc.SimpleGrid(list(cards.values()), cols={"base": 1, "lg": 2}, spacing="md")
    rows = rows_of(there)
    look: dict[str, Any] = {"getRowId": "params.data.training", "height": 80 + 45 * len(rows)}
    latest = [card("Latest", "The last step of each.", table("training-table", rows, **look))]
    return [html.Div(said, role="status"), *first, *_happened_card(there), rest, *(latest if rows else [])]


def verdict(curve: Curve) -> dict[str, Any]:
    """Say whether a training is healthy, in words and by a colour."""
    return {"children": curve.words, "color": "orange" if curve.health.worries else "blue"}


def _said(number: int) -> dict[str, Any]:
    return {"type": "training-said", "number": number}


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
        "memory_bytes": "Of its device; on CPUs of its whole process, where the page Memory counts the rank's tensors.",
    }.get(name, "")
    title = PANELS[name][0].upper() + PANELS[name][1:]
    return card(title, words, graph(f"training-{name}", figure, label=title, height=HEIGHTS.get(name, 280)))


def curve_of(context: PageContext, entry: Entry, entries: list[Entry] | None = None) -> Curve:
    """Read a training, and find what was predicted for its job. Raises DescriptionError."""
    record = READER.record(context.catalog, entry)
    happened = happenings_of(context.catalog, entry, record)
    rate, where = predicted_rate(context, entry, context.catalog.entries() if entries is None else entries)
    kept, end = checkpoints_of(context, entry), ended(context.catalog, entry)
    return Curve(entry.label, record, rate, kept, happened, entry.name, job_in(entry), end, where)


def predicted_rate(context: PageContext, entry: Entry, entries: list[Entry]) -> tuple[float | None, str]:
    """Return the tokens per second of the nearest prediction of the same work, None if there is none.

    Beside it stands the machine that it is for, if that is not the training's.
    """
    described = replace(entry, head=dict(run_of(context.catalog, entry)))
    key, work = key_of(described), work_key(described)
    alike = (one for one in entries if one.kind == "predicted" and key and key_of(one) == key)
    ordered = nearest_first(described, alike)
    other = next((one for one in ordered if not work or work_key(one) == work), None)
    if other is None:
        return None, ""
    where = machine_of(job_in(other))
    where = "" if where == machine_of(job_in(described)) else where
    figures = other.head.get("figures")
    said = figures.get("tokens_per_second") if isinstance(figures, dict) else None
    step = figures.get("step_seconds") if isinstance(figures, dict) else None
    if isinstance(said, int | float):
        return float(said), where
    return tokens_per_second(job_in(other), step if isinstance(step, float) else None), where


def checkpoints_of(context: PageContext, entry: Entry) -> tuple[int, ...]:
    """Return after how many steps the checkpoints that are kept were written."""
    folder = context.catalog.file(entry, "checkpoints")
    if not folder.is_dir():
        return ()
    found = [CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()]
    return tuple(sorted(int(one[1]) for one in found if one))[-MAX_CHECKPOINTS:]


def rows_of(curves: list[Curve]) -> list[dict[str, Any]]:
    """Describe the last step of each training."""
    return [row(curve) for curve in curves]


def row(curve: Curve) -> dict[str, Any]:
    """Describe the last step of a training."""
    record = curve.record
    last = {name: float(column[-1]) for name, column in record.columns.items() if len(column)}
    if not last:
        return {"training": curve.label, "steps": 0, "state": curve.ended}
    share = last["model_flops_utilisation"]
    return {
        "training": curve.label,
        "grid": grid_words(curve.job),
        "steps": record.step[-1] + 1,
        "loss": last["loss"],
        "gradient norm": last["gradient_norm"],
        "learning rate": last["learning_rate"],
        "step (s)": last["seconds"],
        "tokens/s": last["tokens_per_second"],
        "predicted tokens/s": curve.predicted_rate,
        "MFU (%)": None if math.isnan(share) else 100 * share,
        "memory (B)": last["memory_bytes"],
        "warnings": curve.warnings,
        "state": curve.ended,
    }


def look(context: PageContext, _ticks: Any, runs: Any, by: Any, known: Any, search: Any) -> Any:
    """Return what was written since: nothing, points to be added to what is drawn, or all drawn again."""
    names = ",".join(map(str, runs or []))[:2000]
    query = {**query_of(search), "runs": names}
    along, before = "hours" if by == "hours" else "steps", Seen.of_data(known)
    catalog = context.catalog
    entries = catalog.seen()  # who looks at what is known costs its files alone, not a walk through all directories
    if not {entry.name for entry in entries}.issuperset(names.split(",")):
        entries = catalog.entries()
    found = chosen_of([entry for entry in entries if entry.kind in KINDS], query)
    chosen = [catalog.latest(entry) for entry in found]
    files = mark(context, chosen, along, entries)
    if files == before.files:
        return (no_update,) * 3
    curves = read(context, chosen, entries)
    there = [one for one in curves if isinstance(one, Curve)]
    now = seen_of(files, there)
    new = grown(before, now, there, along) if len(there) == len(curves) else None
    if new is None:
        return drawn(curves, along), now.as_data(), ANEW
    said = [{"id": _said(number), "props": verdict(curve)} for number, curve in enumerate(there)]
    return no_update, now.after(before).as_data(), {**new, "said": said, "rows": rows_of(there)}


def register(app: Dash, context: PageContext) -> None:
    """A look every few seconds, and at once when the choice changes."""
    app.callback(
        Output("training-drawn", "children"),
        Output("training-mark", "data"),
        Output("training-new", "data"),
        Input("training-look", "n_intervals"),
        Input(state("runs"), "value"),
        Input(state("by"), "value"),
        State("training-mark", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(look, context))
    app.clientside_callback(
        ClientsideFunction("fourfold", "grow"), Input("training-new", "data"), prevent_initial_call=True
    )


PAGE = Page("/training", "Training", shown, register, needs="runs", kinds=KINDS)
