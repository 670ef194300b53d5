"""Runs: everything under the directory; pick one or two and go on."""

from __future__ import annotations

import json
from typing import Any, get_args
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from dashboards.catalog import Entry, Kind
from dashboards.page import Page, PageContext, Query, state
from dashboards.parts import MOMENT, NUMBER, SECONDS, card, table
from dashboards.run_rows import HEADINGS, NUMBERS, rows_of

TABLE = "runs"
MANY = {"search": "searches", "study": "studies", "watch": "watched trainings", "training": "trainings"}
"""What more than one of a kind are called, where that is another word."""
ONE = {"watch": "watched training"}
"""What one is called, where that is not the kind's name."""
WIDEST = {"model": 170, "machine": 130, "grid": 130, "holds": 260, "differs": 420, "problem": 420}
"""Pixels of columns whose words may come from strangers."""
WRAPPED = {"wrapText": True, "autoHeight": True, "cellClass": "wrapped"}
"""The look of a column of sentences: in several lines, none cut."""


def shown(context: PageContext, query: Query) -> Component:
    """List all entries."""
    entries = context.catalog.entries()
    if not entries:
        return card(
            "Nothing here yet",
            f"No run, search or study lies under {context.catalog.root.name}.",
            dmc.Text(
                "Write one with `fourfold simulate JOB --out DIR`, `fourfold train JOB --trace DIR`, "
                "`fourfold search JOB --out DIR` or `fourfold study FILE --out DIR`."
            ),
        )
    chosen = [e for name in (query.get("run"), query.get("other")) for e in entries if e.name == name]
    columns = columns_of(query.get("sort", ""))
    rows = rows_of(context.catalog, entries, chosen[0] if chosen else None)
    return card(
        "Under this directory",
        f"{counted(entries)}. Choose one or two, and go on below or in the menu.",
        table(
            TABLE,
            rows,
            columns,
            height=460,
            grows=True,
            getRowId="params.data.name",
            selectedRows={"ids": [e.name for e in chosen]},
            dashGridOptions={"rowSelection": {"mode": "multiRow", "enableClickSelection": True}},
            filterModel=filters_of(query.get("filter", "")),
        ),
        *(
            dcc.Input(id=state(key), type="hidden", value=query.get(key, ""))
            for key in ("run", "other", "sort", "filter")
        ),
        html.Div(id="chosen", role="status", style={"marginTop": "12px"}),
    )


def counted(entries: list[Entry]) -> str:
    """Say how many entries there are of each kind, and how many that cannot be read."""
    found = {kind: sum(e.kind == kind for e in entries) for kind in get_args(Kind)}
    found["damaged"] = sum(e.kind is None for e in entries)
    words = ((n, MANY.get(kind, kind) if n > 1 else ONE.get(kind, kind)) for kind, n in found.items() if n)
    kinds = ", ".join(f"{n} {kind}" for n, kind in words)
    return f"{len(entries)} {'entries' if len(entries) > 1 else 'entry'}" + (f": {kinds}" if kinds else "")


def columns_of(sort: str) -> list[dict[str, Any]]:
    """Return the columns, sorted as an address says: `step` or `-step`."""
    number = {"filter": "agNumberColumnFilter", "type": "rightAligned", **NUMBER}
    looks: dict[str, Any] = dict.fromkeys(NUMBERS, number)
    looks |= {"step": {**number, **SECONDS}, "changed": MOMENT, "label": {"pinned": "left", "maxWidth": 320}}
    looks |= {key: {"maxWidth": most} for key, most in WIDEST.items()}
    looks["holds"] |= WRAPPED
    way = {sort.lstrip("-"): {"sort": "desc" if sort.startswith("-") else "asc"}}
    return [
        {"field": key, "headerName": title, **looks.get(key, {}), **way.get(key, {})} for key, title in HEADINGS.items()
    ]


def filters_of(text: str) -> dict[str, Any]:
    """Read the filters of an address; those that make no sense are left out."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return (
        {key: one for key, one in found.items() if key in HEADINGS and isinstance(one, dict)}
        if isinstance(found, dict)
        else {}
    )


def said_of(state_of: Any, filters: Any) -> tuple[str, str]:
    """Write sort and filters of the table as an address has them."""
    columns = state_of if isinstance(state_of, list) else []
    sorts = [one for one in columns if isinstance(one, dict) and one.get("sort") in ("asc", "desc")]
    sort = ("-" if sorts[0]["sort"] == "desc" else "") + str(sorts[0].get("colId", "")) if sorts else ""
    return sort, json.dumps(filters, separators=(",", ":")) if isinstance(filters, dict) and filters else ""


def register(app: Dash, context: PageContext) -> None:
    """Offer what can be done with what is chosen."""

    @app.callback(
        Output("chosen", "children"),
        Output(state("run"), "value"),
        Output(state("other"), "value"),
        Input(TABLE, "selectedRows"),
        prevent_initial_call=True,
    )
    def offer(selected: Any) -> Any:
        rows = selected if isinstance(selected, list) else []
        known = {e.name: e for e in context.catalog.entries()}
        entries = [known[r["name"]] for r in rows if isinstance(r, dict) and r.get("name") in known]
        first, second = (*ordered(entries), None, None)[:2]
        names = [one.name if one else "" for one in (first, second)]
        if not entries:
            return dmc.Text("Nothing is chosen.", size="sm"), *names
        return dmc.Group([_button(context, *choice) for choice in choices(entries)]), *names

    @app.callback(
        Output(state("sort"), "value"),
        Output(state("filter"), "value"),
        Input(TABLE, "columnState"),
        Input(TABLE, "filterModel"),
        prevent_initial_call=True,
    )
    def remember(columns: Any, filters: Any) -> tuple[str, str]:
        return said_of(columns, filters)


def ordered(entries: list[Entry]) -> list[Entry]:
    """Return what was chosen, of a prediction and a measurement the prediction first."""
    return sorted(entries[:2], key=lambda e: e.kind == "measured") if len(entries) > 1 else entries


def choices(entries: list[Entry]) -> list[tuple[str, str, dict[str, str]]]:
    """Where one can go from these entries: (words, path, parameters)."""
    runs = [e for e in entries if e.kind in ("predicted", "measured")]
    found: list[tuple[str, str, dict[str, str]]] = []
    predicted = [e for e in runs if e.kind == "predicted"]
    measured = [e for e in runs if e.kind == "measured"]
    if len(runs) == 2:
        first, second = (predicted[0], measured[0]) if predicted and measured else (runs[0], runs[1])
        both = {"run": first.name, "other": second.name}
        if predicted and measured:
            found.append(("Verdict", "/verdict", both))
        found += [("Compare", "/compare", both), ("Timeline of both", "/timeline", both)]
    elif runs:
        found += [
            ("Timeline", "/timeline", {"run": runs[0].name}),
            ("Rank map", "/ranks", {"run": runs[0].name}),
            ("Communication", "/communication", {"run": runs[0].name}),
            ("Memory", "/memory", {"run": runs[0].name}),
            ("What if", "/whatif", {"run": runs[0].name}),
        ]
    trainings = [e for e in entries if e.kind in ("training", "watch")]
    if trainings:
        found.append(("Training", "/training", {"runs": ",".join(e.name for e in trainings)}))
    found += [("Configurations", "/configurations", {"run": e.name}) for e in entries if e.kind == "search"]
    found += [("Rank map", "/ranks", {"run": e.name}) for e in entries if e.kind == "watch"]
    found += [("Scaling", "/scaling", {"run": e.name}) for e in entries if e.kind == "study"]
    return found


def _button(context: PageContext, words: str, path: str, parameters: dict[str, str]) -> Component:
    address = f"{context.settings.prefix.rstrip('/')}{path}?{urlencode(parameters)}"
    return dmc.Anchor(dmc.Button(words, variant="light"), href=address)


PAGE = Page("/", "Runs", shown, register, needs="run,other")
