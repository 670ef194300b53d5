"""Which run, pair and step a page shows: a row of choices above every page, and a picker where nothing suits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, html, no_update
from dash.development.base_component import Component

from dashboards.catalog import Catalog, Entry
from dashboards.events import steps_of
from dashboards.jobs import partners
from dashboards.later import FIELD_PIXELS, Later
from dashboards.page import Page, PageContext, Query
from dashboards.parts import aria, card
from dashboards.query import query_of
from twin.description.problems import DescriptionError

MAX_OFFERED = 40
"""Rows of a picker: of more the list of runs, which can be searched, is the better place."""
WIDTH = 300
"""Pixels of a choice."""
WORDS = {
    "predicted": "a predicted run",
    "measured": "a measured run",
    "search": "a search",
    "study": "a study",
    "training": "a training",
    "watch": "a watched training",
}


def _kind(entry: Entry) -> str:
    return WORDS[entry.kind].split(" ", 1)[1] if entry.kind else "damaged"


def choose(key: str) -> dict[str, str]:
    """Return the id of a choice of the header."""
    return {"type": "choose", "key": key}


def suited(page: Page, entries: Mapping[str, Entry], query: Query) -> str:
    """Say why a page cannot show what is chosen; nothing if it can."""
    if not page.kinds:
        return ""
    wanted = words_of(page)
    for key in ("run", "other")[: page.runs]:
        if key not in query:
            return f"needs {'two runs' if page.runs == 2 else wanted}"
        found = entries.get(query[key])
        if found is None:
            return f"needs {wanted}: what was chosen is not there any more"
        if found.kind not in page.kinds:
            return f"needs {wanted}, not {WORDS.get(found.kind or '', 'what is damaged')}"
    return ""


def words_of(page: Page) -> str:
    """Say what a page shows."""
    if {"predicted", "measured"} <= set(page.kinds):
        return "a run"
    return " or ".join(WORDS[kind] for kind in page.kinds)


def header(page: Page, catalog: Catalog, query: Query) -> Component:
    """Show what is chosen, to be changed: the run, what it is compared with, and the step."""
    keys = [key for key in ("run", "other") if key in page.needs.split(",")]
    if not keys or not page.kinds:
        return html.Div()
    entries = [entry for entry in catalog.entries() if entry.kind in page.kinds]
    data = [{"value": entry.name, "label": f"{entry.label} ({_kind(entry)})"} for entry in entries]
    known = {entry.name for entry in entries}
    labels = {"run": "run", "other": "compared with"}
    selects = [
        dmc.Select(
            id=choose(key),
            label=labels[key],
            data=data,
            value=query[key] if query.get(key) in known else None,
            searchable=True,
            clearable=key == "other",
            limit=60,
            w=WIDTH,
            placeholder="none",
            size="xs",
        )
        for key in keys
    ]
    shown = [Later(one, one.w, FIELD_PIXELS) for one in (*selects, *_step(page, catalog, query))]
    return dmc.Group(shown, mb="sm", align="end", className="chooser")


def _step(page: Page, catalog: Catalog, query: Query) -> list[Component]:
    """Offer the steps of the measured run, where the page shows one of them."""
    if "step" not in page.needs.split(","):
        return []
    for key in ("other", "run"):
        try:
            entry = catalog.entry(query[key]) if query.get(key) else None
            steps = steps_of(catalog, entry) if entry is not None and entry.kind == "measured" else []
        except DescriptionError:
            steps = []
        if steps:
            data = [{"value": "", "label": "median"}, *({"value": str(n), "label": str(n)} for n in steps)]
            value = query.get("step", "") if query.get("step", "") in {str(n) for n in steps} else ""
            select = dmc.Select(
                id=choose("step"), label="step", data=data, value=value, w=100, size="xs", allowDeselect=False
            )
            return [select]
    return []


def picker(page: Page, context: PageContext, why: str) -> Component:
    """Offer what the page can show, as links."""
    entries = [entry for entry in context.catalog.entries() if entry.kind in page.kinds]
    if page.runs == 2:
        offered = [(f"{e.label} and {o.label}", {"run": e.name, "other": o.name}) for e, o in _pairs(entries)]
    else:
        offered = [(f"{entry.label} ({_kind(entry)})", {"run": entry.name}) for entry in entries]
    if not offered:
        return card("Nothing to show here yet", f"This page {why}, and there is none here.")
    base = context.settings.prefix.rstrip("/") + page.path
    links = [dmc.Anchor(label, href=f"{base}?{urlencode(keys)}", size="sm") for label, keys in offered[:MAX_OFFERED]]
    more = [dmc.Text(f"and {len(offered) - MAX_OFFERED:,} more: choose above", size="sm")]
    rows = dmc.Stack([*links, *(more if len(offered) > MAX_OFFERED else [])], gap="xs")
    return card("Choose what to show", f"This page {why}. Newest first:", rows, identifier="picker")


def _pairs(entries: list[Entry]) -> list[tuple[Entry, Entry]]:
    """Predictions with the measurement of the same job."""
    with_other = partners(entries)
    return [(e, with_other[e.name]) for e in entries if e.kind == "predicted" and e.name in with_other]


def register(app: Dash) -> None:
    """Another choice is another address, of the same page."""

    @app.callback(
        Output("chooser-leads", "search"),
        Input({"type": "choose", "key": ALL}, "value"),
        State({"type": "choose", "key": ALL}, "id"),
        State("address", "search"),
        State("state", "data"),
        prevent_initial_call=True,
    )
    def lead(values: list[Any], ids: list[dict[str, str]], search: str | None, kept: Any) -> Any:
        query = query_of(search)
        chosen = {one["key"]: str(value or "") for one, value in zip(ids, values, strict=True)}
        if all(query.get(key, "") == value for key, value in chosen.items()):
            return no_update
        same = kept if isinstance(kept, dict) else {}
        stay = {key: str(value) for key, value in same.items() if isinstance(value, str) and value and key in query}
        merged = {**query, **stay, **chosen}
        for gone in ("window", "op"):  # of another run they mean nothing
            merged.pop(gone, None)
        if chosen.get("run") != query.get("run"):
            merged.pop("step", None)
        return "?" + urlencode({key: value for key, value in merged.items() if value}, errors="replace")


def nav_words(page: Page, why: str) -> dict[str, Any]:
    """Describe a link of the menu: quieter, with the reason, where the page cannot show what is chosen."""
    return {
        "description": why or None,
        "className": "aside" if why else "",
        **aria(f"{page.title}{': ' if why else ''}{why}"),
    }
