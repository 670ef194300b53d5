"""Runs: everything under the directory; pick one or two and go on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, html, no_update
from dash.development.base_component import Component

from dashboards.catalog import Entry, Kind
from dashboards.events import step_seconds
from dashboards.page import Page, PageContext, Query
from dashboards.parts import card, seconds, table

TABLE = "runs"
HEADINGS = {
    "label": "run",
    "kind": "kind",
    "model": "model",
    "machine": "machine",
    "ranks": "ranks",
    "grid": "grid",
    "step": "step",
    "changed": "written",
    "differs": "differs from the first one chosen",
    "problem": "problem",
}


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
    columns: list[dict[str, Any]] = [{"field": key, "headerName": title} for key, title in HEADINGS.items()]
    columns[0] |= {"pinned": "left"}
    first = chosen[0] if chosen else None
    rows = [row(entry, first, step_seconds(context.catalog, entry)) for entry in entries]
    counts = ", ".join(f"{sum(e.kind == kind for e in entries)} {kind}" for kind in get_args(Kind))
    return card(
        "Under this directory",
        f"{len(entries)} entries: {counts}. Choose one, or a predicted and a measured one.",
        table(
            TABLE,
            rows,
            columns,
            height=460,
            getRowId="params.data.name",
            selectedRows={"ids": [e.name for e in chosen]},
            dashGridOptions={"rowSelection": {"mode": "multiRow", "enableClickSelection": True}},
        ),
        html.Div(id="chosen", role="status", style={"marginTop": "12px"}),
    )


def row(entry: Entry, first: Entry | None, step: float | None) -> dict[str, Any]:
    """Describe an entry in one line."""
    job = entry.head.get("job") or {}
    job = job if isinstance(job, dict) else {}
    grid = job.get("grid")
    return {
        "name": entry.name,
        "label": entry.label,
        "kind": entry.kind or "damaged",
        "model": _name(job.get("model")),
        "machine": _name(job.get("machine")),
        "ranks": job.get("ranks"),
        "grid": " × ".join(map(str, grid.values())) if isinstance(grid, dict) else str(grid or ""),
        "step": "" if step is None else seconds(step),
        "changed": datetime.fromtimestamp(entry.changed, UTC).strftime("%Y-%m-%d %H:%M"),
        "differs": ", ".join(differences(first, entry)) if first is not None and first is not entry else "",
        "problem": entry.problem,
    }


def differences(one: Entry, other: Entry, most: int = 8) -> list[str]:
    """Name the keys of two runs' jobs that differ."""
    jobs = [entry.head.get("job") for entry in (one, other)]
    if not all(isinstance(job, dict) for job in jobs):
        return []
    flat, against = map(_flat, jobs)
    keys = [k for k in sorted({*flat, *against}) if flat.get(k) != against.get(k)]
    return keys[:most] + (["…"] if len(keys) > most else [])


def _flat(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {path: node}
    found: dict[str, Any] = {}
    for key, value in node.items():
        if path == "" and key == "train":
            continue
        found |= _flat(value, f"{path}.{key}" if path else str(key))
    return found


def _name(node: Any) -> str:
    return str(node.get("name", "")) if isinstance(node, dict) else str(node or "")


def register(app: Dash, context: PageContext) -> None:
    """Offer what can be done with what is chosen."""

    @app.callback(Output("chosen", "children"), Input(TABLE, "selectedRows"))
    def offer(selected: Any) -> Any:
        rows = selected if isinstance(selected, list) else []
        known = {e.name: e for e in context.catalog.entries()}
        entries = [known[r["name"]] for r in rows if isinstance(r, dict) and r.get("name") in known]
        if not entries:
            return no_update if selected is None else dmc.Text("Nothing is chosen.", size="sm")
        return dmc.Group([_button(context, *choice) for choice in choices(entries)])


def choices(entries: list[Entry]) -> list[tuple[str, str, dict[str, str]]]:
    """Where one can go from these entries: (words, path, parameters)."""
    runs = [e for e in entries if e.kind in ("predicted", "measured")]
    found: list[tuple[str, str, dict[str, str]]] = []
    predicted = [e for e in runs if e.kind == "predicted"]
    measured = [e for e in runs if e.kind == "measured"]
    if len(runs) == 2:
        first, second = (predicted[0], measured[0]) if predicted and measured else (runs[0], runs[1])
        both = {"run": first.name, "other": second.name}
        found += [("Verdict", "/verdict", both), ("Timeline of both", "/timeline", both)]
    elif runs:
        found += [
            ("Timeline", "/timeline", {"run": runs[0].name}),
            ("Rank map", "/ranks", {"run": runs[0].name}),
            ("Communication", "/communication", {"run": runs[0].name}),
            ("Memory", "/memory", {"run": runs[0].name}),
            ("What if", "/whatif", {"run": runs[0].name}),
        ]
    found += [("Configurations", "/configurations", {"run": e.name}) for e in entries if e.kind == "search"]
    found += [("Rank map", "/ranks", {"run": e.name}) for e in entries if e.kind == "watch"]
    found += [("Scaling", "/scaling", {"run": e.name}) for e in entries if e.kind == "study"]
    return found


def _button(context: PageContext, words: str, path: str, parameters: dict[str, str]) -> Component:
    address = f"{context.settings.prefix.rstrip('/')}{path}?{urlencode(parameters)}"
    return dmc.Anchor(dmc.Button(words, variant="light"), href=address)


PAGE = Page("/", "Runs", shown, register, needs="run,other")
