"""Pieces of the timeline's page: controls, the panel of a chosen op, tables."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dashboards.events import CATEGORIES, GAP
from dashboards.figures.pipeline import left_out
from dashboards.figures.timeline_picture import WORDS
from dashboards.later import FIELD_PIXELS, Later
from dashboards.page import Query, state
from dashboards.parts import aria, card, seconds, table
from dashboards.timeline.inspect import Looked
from dashboards.timeline.lanes import HOST, Lanes, unpaired, worst
from dashboards.timeline.view import Pair, View, all_ranks, ranges
from twin.description.units import counted

WORST, WINDOW, FOUND = "timeline-worst", "timeline-window", "timeline-found"
WORST_PLACE, WORST_PIXELS = "timeline-worst-rows", 320
KEYS = (
    "Wheel: zoom at the pointer. Drag: zoom to a window. Shift and drag: measure. Keys: ← → or A D move, + − or W S "
    "zoom, N P next and previous op, Home all, Escape leaves the figure; Back undoes a zoom. A click on a lane's name "
    "folds its rank into one lane, or unfolds it."
)
SELECT = {"rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True}}


def lane_controls(query: Query, pair: Pair, view: View) -> list[Component]:
    """Choices of what is drawn: ranks, kinds of ops, how lanes are laid out."""
    axes = list(pair.grid.axes) if pair.grid is not None else []
    lays = [{"value": "", "label": "a lane each stream"}, {"value": "rank", "label": "a lane each rank"}]
    lays += [{"value": HOST, "label": "a lane each host"}] if pair.ranks_per_host else []
    lays += [{"value": axis, "label": f"a lane each {axis}"} for axis in axes]
    return [
        _text("ranks", f"ranks ({ranges(all_ranks(pair))})", query, "all, or 0,3,8-15"),
        _text("pins", "pinned above", query, "ranks, such as 0,7"),
        # names write it too: a field that reports what was typed some time ago would take a later click back
        _text("turned", "folded, or unfolded", query, "ranks, or click a name", debounce=True),
        _select("lay", "lanes", view.lay, lays, 170),
        _select(
            "show",
            "show",
            view.show,
            [{"value": "", "label": "everything"}, *({"value": c, "label": WORDS[c]} for c in kinds_of(pair, view))],
            180,
        ),
    ]


def kinds_of(pair: Pair, view: View) -> list[str]:
    """Return the kinds of events that the steps have, gaps between them, and what an address says is to be shown."""
    there = np.sum([np.bincount(step.category, minlength=len(CATEGORIES)) for step in pair.steps], axis=0)
    return [name for name, number in zip(CATEGORIES, there, strict=True) if number or name in (GAP, view.show)]


def pair_controls(query: Query, pair: Pair, view: View) -> list[Component]:
    """Choices that two runs give, and the critical path."""
    alone = len(pair.steps) == 1
    colours = [{"value": "kind", "label": "by kind"}, {"value": "error", "label": "by error"}]
    paths = [{"value": "", "label": "none"}, *({"value": str(n), "label": w} for n, w in enumerate(pair.labels))]
    anchors = [{"value": "", "label": "the step's begin"}, *({"value": name, "label": name} for name in _anchors(pair))]
    path = query.get("path", "")
    return [
        _select("colour", "colour", view.colour if view.colour == "error" else "kind", colours, 120, disabled=alone),
        _select("align", "align at", view.align, anchors, 220, disabled=alone, searchable=True, limit=60),
        _select("path", "critical path", path if path in {"0", "1"} and int(path) < len(paths) - 1 else "", paths, 130),
    ]


def _text(key: str, label: str, query: Query, placeholder: str, debounce: int | bool = 600) -> Component:
    """Return a field that says what is written after so many milliseconds, or when it is left or Enter pressed."""
    value, width = query.get(key, ""), 180
    field = dmc.TextInput(
        id=state(key), label=label, value=value, debounce=debounce, placeholder=placeholder, w=width, size="xs"
    )
    return Later(field, width, FIELD_PIXELS)


def _select(key: str, label: str, value: str, data: list[dict[str, str]], width: int, **more: Any) -> Component:
    known = {one["value"] for one in data}
    field = dmc.Select(
        id=state(key),
        label=label,
        data=data,
        value=value if value in known else data[0]["value"],
        w=width,
        size="xs",
        allowDeselect=False,
        **more,
    )
    return Later(field, width, FIELD_PIXELS)


def jumps(pair: Pair) -> Component:
    """Buttons below the figure."""
    words = "Longest op" if len(pair.steps) == 1 else "Largest difference"
    button = {"variant": "default", "size": "xs"}
    return dmc.Group(
        [
            dmc.Button(words, id="timeline-jump", **button),
            dmc.Button("Show all", id="timeline-all", **button),
            dmc.Button("Save ops as CSV", id="timeline-csv", **button),
            dmc.Button("Save as SVG", id="timeline-svg", **button),
            dmc.Button("Save for Perfetto", id="timeline-chrome", **button),
            dcc.Download(id="timeline-file"),
            dmc.Text(KEYS, size="sm", c="var(--quiet)"),
        ],
        mt="xs",
    )


def worst_card(pair: Pair) -> Component:
    """A place for the ops that differ most, or of one run those that take longest."""
    title = "Largest differences" if len(pair.steps) > 1 else "Longest ops"
    room = html.Div(id=WORST_PLACE, style={"minHeight": f"{WORST_PIXELS + 40}px"})  # so that nothing jumps
    return card(title, "Choose an op to see it on the timeline.", room)


def worst_table(pair: Pair, laid: Lanes) -> Component:
    """List the ops that differ most, or of one run those that take longest."""
    fields = ("op", "rank", "stream", *(f"{label} (s)" for label in pair.labels), "difference (s)")
    columns = [{"field": name, "headerName": name} for name in (fields if len(pair.steps) > 1 else fields[:-1])]
    look: dict[str, Any] = {"getRowId": "params.data.key", "dashGridOptions": SELECT}
    return table(WORST, worst_rows(pair, laid), columns, height=WORST_PIXELS, **look)


def plain_table(rows: list[dict[str, Any]]) -> Component:
    """Show a few rows without what a large table can do, which takes a browser a moment to set up."""
    heads = [dmc.TableTh(name.removesuffix(" (s)")) for name in (rows[0] if rows else {})]
    body = [dmc.TableTr([dmc.TableTd(_cell(name, value)) for name, value in row.items()]) for row in rows]
    return dmc.TableScrollContainer(dmc.Table([dmc.TableThead(dmc.TableTr(heads)), dmc.TableTbody(body)]), minWidth=500)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        return seconds(value) if name.endswith("(s)") else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def found_table(pair: Pair, rows: list[dict[str, Any]]) -> Component:
    """Show the ops that a search found."""
    names = [f"{label}, {what}" for label in pair.labels for what in ("times", "total (s)", "mean (s)")]
    columns = [{"field": name, "headerName": name} for name in ("op", *names)]
    return table(FOUND, rows, columns, height=300, getRowId="params.data.key", dashGridOptions=SELECT)


def summary(pair: Pair, laid: Lanes) -> str:
    """Say how long the steps are, and what is not drawn."""
    both = zip(pair.labels, pair.steps, strict=True)
    lengths = ", ".join(f"{label} {seconds(step.length)} (step {step.number})" for label, step in both)
    lacking = [
        f"{counted(number, 'op')} {'is' if number == 1 else 'are'} in the {label} run only"
        for side, label in enumerate(pair.labels)
        if (number := unpaired(pair, side))
    ]
    room = [left_out(laid.left_out)] if laid.left_out else []
    return f"{lengths[0].upper()}{lengths[1:]}. " + "".join(f"{w[0].upper()}{w[1:]}. " for w in (*lacking, *room))


def _anchors(pair: Pair, most: int = 2000) -> list[str]:
    """Ops that both runs can be laid over each other at: those that both have."""
    if len(pair.steps) == 1:
        return []
    both = set(pair.steps[1].names)
    return [name for name in pair.steps[0].names if name in both and not name.endswith("/wait")][:most]


def worst_rows(pair: Pair, laid: Lanes) -> list[dict[str, Any]]:
    """Rows of the ops that differ most; each with the window in which it lies."""
    rows = []
    side = len(pair.steps) - 1
    for place, difference in worst(pair, laid):
        step, event = pair.steps[side], int(laid.event[place])
        own = float(laid.end[place] - laid.start[place])
        name = step.names[step.base[event]]
        is_gap = CATEGORIES[laid.category[place]] == GAP
        rows.append(
            {
                "key": f"{side}.{event}" + (f".{place}" if is_gap else ""),
                "op": f"gap before {name}" if is_gap else name,
                "rank": int(step.rank[event]),
                "stream": step.streams[step.stream[event]],
                **({f"{pair.labels[0]} (s)": own - difference} if side else {}),
                f"{pair.labels[side]} (s)": own,
                "difference (s)": difference,
                "start": float(laid.start[place]),
                "end": float(laid.end[place]),
            }
        )
    return rows


def panel(looked: Looked | None) -> Component:
    """Show what is known of the chosen op."""
    if looked is None:
        return html.Div()
    facts = dmc.Group([dmc.Text(f"{what}: {value}", size="sm") for what, value in looked.facts], gap="lg")
    why = [dmc.Alert(looked.why, title="Why is this wait here?", color="blue", variant="light", my="xs")]
    tables = []
    if looked.members:
        words = dmc.Text("Who met, the last first", size="sm", fw=600)
        tables.append(html.Div([words, table("timeline-members", looked.members, height=230)]))
    words = dmc.Text("The same op of other ranks, and of other steps", size="sm", fw=600)
    tables.append(html.Div([words, table("timeline-elsewhere", looked.elsewhere, height=230)]))
    inside = [facts, *(why if looked.why else []), dmc.SimpleGrid(tables, cols={"base": 1, "lg": 2})]
    close = dmc.Button("Close", id="timeline-close", variant="default", size="xs", mt="xs", **aria("Close the panel"))
    return card(looked.title, "The op that is framed on the timeline.", *inside, close)
