"""Configurations: every candidate of a search, which of them are best, and two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.candidate_rows import able, columns_of, comparison, model_rows, refused_row, row, unable
from dashboards.candidate_strategies import strategies_card
from dashboards.candidate_words import model_summary, refused_words, summary_of
from dashboards.candidates import SavedCandidate, candidates_of, job_text
from dashboards.figures.pareto import MAX_LINES, orders, parallel, pareto
from dashboards.page import Page, PageContext, Query, state
from dashboards.parts import card, graph, reasons, table, with_table
from dashboards.query import query_of
from twin.description.problems import DescriptionError, fail
from twin.strategies import known_axes

PARETO, PARALLEL, ORDERS = "pareto", "parallel", "orders"
TABLE, REFUSED = "candidates", "infeasible"
OF_OPTIONS = {"recompute": "recompute", "sharding": "data reduction"}
"""Filters on options, and the columns that they look at."""
AXES = known_axes()  # asked once: the answer lists a folder, and a search has tens of thousands of candidates
FILTERS = ("strategy", "ranks", *AXES, *OF_OPTIONS, "fits")
MAX_CHOICES = 200
"""Of a filter; nobody looks through a longer list."""


def opened(context: PageContext, query: Query) -> tuple[SavedCandidate, ...]:
    """Read the search that an address names. Raises DescriptionError."""
    if "run" not in query:
        raise fail("run", "choose a search on the page Runs first; `fourfold search JOB --out DIR` writes one")
    return candidates_of(context.catalog, context.catalog.entry(query["run"]))


def value_of(candidate: SavedCandidate, key: str) -> str:
    """What a candidate is called under a filter."""
    if key in AXES:
        return str(candidate.grid.size(key)) if key in candidate.grid.axes else ""
    if key == "ranks":
        return str(candidate.ranks)
    if key == "strategy":
        return candidate.strategy
    if key == "fits":
        return "yes" if candidate.feasible else candidate.hindrance
    return str(candidate.options.columns().get(OF_OPTIONS[key], ""))


def filtered(found: Sequence[SavedCandidate], query: Query) -> list[SavedCandidate]:
    """Keep those that an address asks for: `z=8,16` for sizes, `recompute=on`."""
    wanted = {key: set(query[key].split(",")) for key in FILTERS if query.get(key)}
    return [c for c in found if all(value_of(c, key) in words for key, words in wanted.items())]


def pair_of(text: str, found: Sequence[SavedCandidate]) -> list[SavedCandidate]:
    """Read the numbers of at most two candidates, such as 3,17; what is not there is left out."""
    numbers = [int(word) for word in text.split(",")[:8] if word.isdecimal() and len(word) < 9]
    return [found[n] for n in dict.fromkeys(numbers) if n < len(found)][:2]


def figures(kept: Sequence[SavedCandidate], chosen: Sequence[SavedCandidate]) -> tuple[Any, Any, Any]:
    """The three figures of what is kept."""
    return pareto(kept, [c.number for c in chosen]), parallel(kept), orders(kept)


def shown(context: PageContext, query: Query) -> Component:
    """Show the candidates of a search."""
    found = opened(context, query)
    kept, chosen = filtered(found, query), pair_of(query.get("pair", ""), found)
    first, second, third = figures(kept, chosen)
    return html.Div(
        [
            *strategies_card(context.catalog.entry(query["run"]), found),
            _memory_card(found, kept, chosen, query, first),
            html.Div(
                comparison(chosen, query.get("run", ""), context.settings.prefix),
                id="configurations-pair",
                role="status",
            ),
            dcc.Input(id=state("pair"), type="hidden", value=query.get("pair", "")),
            dcc.Download(id="configurations-file"),
            html.Div(id="configurations-problem", role="alert"),
            card(
                "All options at once",
                f"The {MAX_LINES} fastest at most: one line each through all of its choices, "
                "coloured by its quarter in time; every axis from its least value below to its largest above.",
                with_table(
                    graph(PARALLEL, second, label="Options of the fastest candidates, a line each", height=440),
                    dmc.Text("The same candidates are the rows of the table above.", size="sm"),
                ),
            ),
            card(
                "The published model's order",
                html.Span(model_summary(kept, found), id="configurations-model"),
                with_table(
                    graph(ORDERS, third, label="Place by the published model against place in simulated time"),
                    table("model-top", model_rows(kept, found)),
                ),
            ),
            _refused_card(found, kept),
        ]
    )


def _memory_card(
    found: Sequence[SavedCandidate],
    kept: Sequence[SavedCandidate],
    chosen: Sequence[SavedCandidate],
    query: Query,
    figure: Any,
) -> Component:
    """The filters, and what they keep as points and as rows; in both, two candidates can be chosen."""
    columns: list[dict[str, Any]] = [
        {"field": name, "headerName": name, "minWidth": 150 if name == found[0].axes else 110}
        for name in columns_of([row(one_of(found, name)) for name in dict.fromkeys(c.strategy for c in found)])
    ]
    columns[0] |= {"hide": True}
    selection = {"mode": "multiRow", "enableClickSelection": True, "enableSelectionWithoutKeys": True}
    return card(
        "Step time against memory",
        html.Span(summary_of(found, kept), id="configurations-words", role="status"),
        dmc.Group([_choice(found, query, key) for key in FILTERS], mb="xs", align="end"),
        with_table(
            graph(PARETO, figure, label="Step time against memory of all candidates", height=480),
            table(
                TABLE,
                able(kept),
                columns,
                height=480,
                grows=True,
                getRowId="params.data.id",
                selectedRows={"ids": [str(c.number) for c in chosen]},
                dashGridOptions={"rowSelection": selection},
            ),
        ),
        dmc.Text(
            "The line is the front: no candidate is both faster and smaller. Click points, or choose rows "
            "of the table, to compare two.",
            size="sm",
        ),
    )


def one_of(found: Sequence[SavedCandidate], strategy: str) -> SavedCandidate:
    """Return any candidate of a strategy: all have the same options."""
    return next(c for c in found if c.strategy == strategy)


def _refused_card(found: Sequence[SavedCandidate], kept: Sequence[SavedCandidate]) -> Component:
    columns = [
        {"field": name, "headerName": name, "minWidth": 700 if name == "reason" else 90}
        for name in refused_row(found[0])
    ]
    return card(
        "What cannot run",
        html.Span(refused_words(kept), id="configurations-refused"),
        html.Div(table(REFUSED, unable(kept), columns, grows=True), hidden=not unable(found)),
    )


def _choice(found: Sequence[SavedCandidate], query: Query, key: str) -> Component:
    known = {value_of(c, key) for c in found} - {""}  # what another strategy lacks is no choice
    values = sorted(known, key=lambda v: (len(v), v))[:MAX_CHOICES]
    given = [word for word in query.get(key, "").split(",") if word in values]
    choice = dmc.MultiSelect(
        id=state(key), label=key, data=values, value=given, w=150, clearable=True, placeholder="all"
    )
    return html.Div(choice, hidden=len(values) < 2)  # one that is not seen takes no room in the row


def asked(values: Sequence[Any], search: Any) -> dict[str, str]:
    """Return an address with what the controls now say: filters, and the pair."""
    return query_of(search) | {
        key: ",".join(map(str, value)) if isinstance(value, list) else str(value or "")
        for key, value in zip((*FILTERS, "pair"), values, strict=True)
    }


def chosen_of(old: Sequence[int], there: Sequence[int]) -> list[int]:
    """Return the two that were chosen last, in the order in which they were chosen.

    >>> chosen_of([3, 5], [5, 3, 8]), chosen_of([3, 5], [5])
    ([5, 8], [5])
    """
    return [*(n for n in old if n in there), *(n for n in there if n not in old)][-2:]


def narrow(context: PageContext, *given: Any) -> Any:
    """Show what the filters keep."""
    *values, search = given
    query = asked(values, search)
    try:
        found = opened(context, query)
    except DescriptionError as error:
        return *(no_update,) * 9, reasons(error)
    kept, chosen = filtered(found, query), pair_of(query.get("pair", ""), found)
    return (
        *figures(kept, chosen),
        able(kept),
        unable(kept),
        summary_of(found, kept),
        model_summary(kept, found),
        refused_words(kept),
        comparison(chosen, query.get("run", ""), context.settings.prefix),
        "",
    )


def choose(context: PageContext, rows: Any, clicked: Any, *given: Any) -> Any:
    """Take rows that were chosen, or a point that was clicked, into the pair."""
    *values, search = given
    query = asked(values, search)
    try:
        found = opened(context, query)
    except DescriptionError:
        return no_update, no_update
    old = [c.number for c in pair_of(query["pair"], found)]
    there = _clicked(clicked, old) if ctx.triggered_id == PARETO else _ticked(rows, old, filtered(found, query))
    if there is None:
        return no_update, no_update
    new = chosen_of(old, there)
    same = sorted(new) == sorted(n for n in there if n < len(found))
    selected = no_update if same and ctx.triggered_id == TABLE else {"ids": [str(n) for n in new]}
    return ",".join(map(str, new)) if new != old else no_update, selected


def _clicked(clicked: Any, old: Sequence[int]) -> list[int] | None:
    """The pair so far and the candidate of a point; None if the click was on none."""
    points = clicked.get("points") if isinstance(clicked, dict) else None
    number = points[0].get("customdata") if points else None
    return [*(n for n in old if n != number), number] if isinstance(number, int) else None


def _ticked(rows: Any, old: Sequence[int], kept: Sequence[SavedCandidate]) -> list[int] | None:
    """The candidates of chosen rows; a filter hides a row and does not drop it from the pair."""
    if not isinstance(rows, list):
        return None
    there = [int(r["id"]) for r in rows if isinstance(r, dict) and str(r.get("id")).isdecimal()]
    seen = {c.number for c in kept}
    return [*there, *(n for n in old if n not in seen)]


def save(context: PageContext, clicks: Any, search: Any) -> Any:
    """Give a candidate as a job file."""
    cause = ctx.triggered_id
    if not any(clicks or []) or not isinstance(cause, dict):
        return no_update, no_update
    query = query_of(search)
    try:
        chosen = pair_of(str(cause.get("number")), opened(context, query))
        if not chosen:
            raise fail("candidate", "is not in the search any more; open the page again")
        entry = context.catalog.entry(query["run"])
        content = job_text(context.catalog, entry, chosen[0])
    except DescriptionError as error:
        return no_update, reasons(error)
    return {"content": content, "filename": file_name(chosen[0])}, ""


def file_name(candidate: SavedCandidate) -> str:
    """Name the job file of a candidate, such as 8x1x1x1.yaml or megatron-data4-tensor2.yaml."""
    words = candidate.name.replace(", ", "-").replace(" × ", "-" if candidate.several else "x").replace(" ", "")
    return f"{words}.yaml"


def register(app: Dash, context: PageContext) -> None:
    """Filters, choosing, and the job file."""
    states = (*FILTERS, "pair")
    app.callback(
        Output(PARETO, "figure"),
        Output(PARALLEL, "figure"),
        Output(ORDERS, "figure"),
        Output(TABLE, "rowData"),
        Output(REFUSED, "rowData"),
        Output("configurations-words", "children"),
        Output("configurations-model", "children"),
        Output("configurations-refused", "children"),
        Output("configurations-pair", "children"),
        Output("configurations-problem", "children"),
        *(Input(state(key), "value") for key in states),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(narrow, context))
    app.callback(
        Output(state("pair"), "value"),
        Output(TABLE, "selectedRows"),
        Input(TABLE, "selectedRows"),
        Input(PARETO, "clickData"),
        *(State(state(key), "value") for key in states),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(choose, context))
    app.callback(
        Output("configurations-file", "data"),
        Output("configurations-problem", "children", allow_duplicate=True),
        Input({"type": "candidate", "number": ALL}, "n_clicks"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(save, context))


PAGE = Page("/configurations", "Configurations", shown, register, needs="run", kinds=("search",), runs=1)
