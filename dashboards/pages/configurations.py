"""Configurations: every candidate of a search, which of them are best, and two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.candidates import SWITCHES, Candidate, candidates_of, job_text
from dashboards.figures.pareto import MOST_LINES, TOP, drawable, orders, parallel, pareto
from dashboards.page import Context, Page, Query, state
from dashboards.parts import aria, card, graph, seconds, table, with_table
from dashboards.query import query_of
from twin.description.grid import AXES
from twin.description.problems import DescriptionError, fail
from twin.study.search.words import HINDRANCES

PARETO, PARALLEL, ORDERS = "pareto", "parallel", "orders"
TABLE, REFUSED = "candidates", "infeasible"
FILTERS = ("ranks", *AXES, "recompute", "sharding", "fits")
MOST_ROWS = 5000
MOST_CHOICES = 200


def opened(context: Context, query: Query) -> tuple[Candidate, ...]:
    """Read the search that an address names. Raises DescriptionError."""
    if "run" not in query:
        raise fail("run", "choose a search on the page Runs first; `fourfold search JOB --out DIR` writes one")
    return candidates_of(context.catalog, context.catalog.entry(query["run"]))


def value_of(candidate: Candidate, key: str) -> str:
    """What a candidate is called under a filter."""
    if key in AXES:
        return str(candidate.grid.size(key))
    if key == "ranks":
        return str(candidate.ranks)
    if key == "fits":
        return "yes" if candidate.feasible else candidate.hindrance
    return ("on" if candidate.options.recompute else "off") if key == "recompute" else candidate.options.data_reduction


def filtered(found: Sequence[Candidate], query: Query) -> list[Candidate]:
    """Keep those that an address asks for: `z=8,16` for sizes, `recompute=on`."""
    wanted = {key: set(query[key].split(",")) for key in FILTERS if query.get(key)}
    return [c for c in found if all(value_of(c, key) in words for key, words in wanted.items())]


def pair_of(text: str, found: Sequence[Candidate]) -> list[Candidate]:
    """Read the numbers of at most two candidates, such as 3,17; what is not there is left out."""
    numbers = [int(word) for word in text.split(",")[:8] if word.isdecimal() and len(word) < 9]
    return [found[n] for n in dict.fromkeys(numbers) if n < len(found)][:2]


def summary_of(found: Sequence[Candidate], kept: Sequence[Candidate]) -> str:
    """Say in a sentence what there is and which is fastest."""
    drawn = drawable(kept)
    words = (f"{len(found):,} candidates, {sum(c.feasible for c in found):,} can run; {len(drawn):,} drawn")
    if not drawn:
        return f"{words}."
    best = drawn[0]
    return (f"{words}. Fastest: {best.name} (data × z × y × x), {seconds(best.step_seconds or 0.0)}, "
            f"{(best.memory_bytes or 0.0) / 1e9:.1f} GB.")  # fmt: skip


def model_summary(kept: Sequence[Candidate]) -> str:
    """Say where the published communication model's best lie in simulated time."""
    top = model_top(kept)
    if not top:
        return "No candidate of the published communication model's first ten is shown."
    places = ", ".join(f"{c.rank:,}" if c.rank else "–" for c in top)
    return f"The published communication model's first {TOP} lie at places {places} in simulated time."


def model_top(kept: Sequence[Candidate]) -> list[Candidate]:
    """The published model's best, in its order."""
    return sorted((c for c in kept if c.model_rank and c.model_rank <= TOP), key=lambda c: (c.ranks, c.model_rank or 0))


def row(candidate: Candidate) -> dict[str, Any]:
    """One candidate as a row, SI figures."""
    options, step = candidate.options, candidate.step_seconds
    return {
        "id": str(candidate.number), "place": candidate.rank, "data × z × y × x": candidate.name,
        "ranks": candidate.ranks, "micro-batch": candidate.micro_sequences, "step (s)": step,
        "exposed (%)": None if not step else round(100 * (candidate.exposed_seconds or 0.0) / step, 2),
        "memory (GB)": None if candidate.memory_bytes is None else round(candidate.memory_bytes / 1e9, 2),
        "of peak (%)": None if candidate.percent_of_peak is None else round(candidate.percent_of_peak, 2),
        "tokens/s": None if candidate.tokens_per_second is None else round(candidate.tokens_per_second),
        "model's place": candidate.model_rank, "recompute": "on" if options.recompute else "off",
        "layers cached": options.cache_gathered_layers, "data reduction": options.data_reduction,
        **{name.replace("_", " "): "on" if getattr(options, name) else "off" for name in SWITCHES},
    }  # fmt: skip


def refused_row(candidate: Candidate) -> dict[str, Any]:
    """One candidate that cannot run, with the reason."""
    why = {str(k): v for k, v in HINDRANCES.items()}.get(candidate.hindrance, candidate.hindrance or "simulation")
    return {
        "data × z × y × x": candidate.name, "ranks": candidate.ranks, "hindered by": why,
        "memory (GB)": None if candidate.memory_bytes is None else round(candidate.memory_bytes / 1e9, 2),
        "reason": candidate.reason,
    }  # fmt: skip


def able(kept: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Rows of those that were simulated or ranked."""
    return [row(c) for c in kept if c.feasible and not c.reason][:MOST_ROWS]


def unable(kept: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Rows of those that cannot run."""
    return [refused_row(c) for c in kept if not c.feasible or c.reason][:MOST_ROWS]


def figures(kept: Sequence[Candidate], chosen: Sequence[Candidate]) -> tuple[Any, Any, Any]:
    """The three figures of what is kept."""
    return pareto(kept, [c.number for c in chosen]), parallel(kept), orders(kept)


def shown(context: Context, query: Query) -> Component:
    """Show the candidates of a search."""
    found = opened(context, query)
    kept, chosen = filtered(found, query), pair_of(query.get("pair", ""), found)
    first, second, third = figures(kept, chosen)
    columns: list[dict[str, Any]] = [{"field": name} for name in row(found[0])]
    columns[0] |= {"hide": True}
    words = summary_of(found, kept)
    return html.Div([
        card("Step time against memory", html.Span(words, id="configurations-words", role="status"),
             dmc.Group([_choice(found, query, key) for key in FILTERS],
                       mb="xs", align="end"),
             with_table(graph(PARETO, first, label="Step time against memory of all candidates", height=480),
                        table(TABLE, able(kept), columns, height=480, getRowId="params.data.id",
                              selectedRows={"ids": [str(c.number) for c in chosen]},
                              dashGridOptions={"rowSelection": {"mode": "multiRow", "enableClickSelection": True}})),
             dmc.Text("The line is the front: no candidate is both faster and smaller. Click points, or choose rows "
                      "of the table, to compare two.", size="sm")),
        html.Div(comparison(chosen), id="configurations-pair", role="status"),
        dcc.Input(id=state("pair"), type="hidden", value=query.get("pair", "")),
        dcc.Download(id="configurations-file"),
        html.Div(id="configurations-problem", role="alert"),
        card("All options at once", f"The {MOST_LINES} fastest at most: one line each through all of its choices, "
             "coloured by its quarter in time; every axis from its least value below to its largest above.",
             with_table(graph(PARALLEL, second, label="Options of the fastest candidates, a line each", height=440),
                        dmc.Text("The same candidates are the rows of the table above.", size="sm"))),
        card("The published model's order", html.Span(model_summary(kept), id="configurations-model"),
             with_table(graph(ORDERS, third, label="Place by the published model against place in simulated time"),
                        table("model-top", model_rows(kept)))),
        card("What cannot run", html.Span(_refused_words(kept), id="configurations-refused"),
             table(REFUSED, unable(kept), [{"field": "data × z × y × x"}, {"field": "ranks"}, {"field": "hindered by"},
                                           {"field": "memory (GB)"}, {"field": "reason", "minWidth": 600}])),
    ])  # fmt: skip




def model_rows(kept: Sequence[Candidate]) -> list[dict[str, Any]]:
    """The published model's best with their simulated places, and how much slower than the fastest they are."""
    fastest = min((c.step_seconds for c in kept if c.step_seconds), default=None)
    return [{
        "model's place": c.model_rank, "simulated place": c.rank, "data × z × y × x": c.name, "ranks": c.ranks,
        "step (s)": c.step_seconds,
        "slower than the fastest (%)": round(100 * (c.step_seconds / fastest - 1), 2) if c.step_seconds and fastest
        else None} for c in model_top(kept)]  # fmt: skip


def _refused_words(kept: Sequence[Candidate]) -> str:
    rows = [c for c in kept if not c.feasible]
    counts = [f"{sum(c.hindrance == kind for c in rows):,} for {words}" for kind, words in HINDRANCES.items()
              if any(c.hindrance == kind for c in rows)]  # fmt: skip
    return f"{len(rows):,} candidates cannot run: {', '.join(counts)}." if rows else "All of them can run."


def _choice(found: Sequence[Candidate], query: Query, key: str) -> Component:
    values = sorted({value_of(c, key) for c in found}, key=lambda v: (len(v), v))[:MOST_CHOICES]
    given = [word for word in query.get(key, "").split(",") if word in values]
    hidden = {"style": {"display": "none"}} if len(values) < 2 else {}
    return dmc.MultiSelect(id=state(key), label=key, data=values, value=given, w=150, clearable=True, placeholder="all",
                           **hidden, **aria(f"only these: {key}"))  # fmt: skip


def comparison(chosen: Sequence[Candidate]) -> Component:
    """Show one candidate, or two side by side."""
    if not chosen:
        return html.Div()
    parts = [facts(c) for c in chosen]
    body = []
    for key in dict.fromkeys(key for part in parts for key in part):
        cells = [part.get(key, "") for part in parts]
        bold = 700 if len(set(cells)) > 1 else 400
        shown_cells = [dmc.TableTd(dmc.Text(cell, size="sm", fw=bold)) for cell in cells]
        body.append(dmc.TableTr([dmc.TableTh(key), *shown_cells]))
    heads = [dmc.TableTh(dmc.Group([c.name, _download(c)])) for c in chosen]
    words = ("Choose a second one to compare." if len(chosen) == 1 else
             "Bold: where the two differ. Times are means over ranks.")  # fmt: skip
    return card("Chosen" if len(chosen) == 1 else "Side by side", words, dmc.Table(
        [dmc.TableThead(dmc.TableTr([dmc.TableTh("data × z × y × x"), *heads])), dmc.TableTbody(body)],
        striped="even"))  # fmt: skip


def _download(candidate: Candidate) -> Component:
    return dmc.Button("Job file", id={"type": "candidate", "number": candidate.number}, size="xs", variant="default",
                      disabled=candidate.micro_sequences is None, **aria(f"Job file of {candidate.name}"))  # fmt: skip


def facts(candidate: Candidate) -> dict[str, str]:
    """Everything about one candidate: options, parts of the step, memory."""
    options = candidate.options

    def time(value: float | None) -> str:
        return "–" if value is None else seconds(value)

    return {
        "ranks": f"{candidate.ranks:,}", "micro-batch": str(candidate.micro_sequences or "–"),
        "recompute": "on" if options.recompute else "off", "layers cached": str(options.cache_gathered_layers),
        "data reduction": options.data_reduction.replace("_", " "),
        **{f"overlap, {name.replace('_', ' ')}": "on" if getattr(options, name) else "off" for name in SWITCHES},
        "step": time(candidate.step_seconds), "place": f"{candidate.rank:,}" if candidate.rank else "–",
        "model's place": f"{candidate.model_rank:,}" if candidate.model_rank else "–",
        "compute": time(candidate.compute_seconds), "exposed communication": time(candidate.exposed_seconds),
        **{f"exposed, {axis}": time(value) for axis, value in candidate.exposed_by_axis.items()},
        "idle": time(candidate.idle_seconds),
        "memory of a rank": "–" if candidate.memory_bytes is None else f"{candidate.memory_bytes / 1e9:.2f} GB",
        **{f"memory, {name}": f"{size / 1e9:.2f} GB" for name, size in candidate.memory.items()},
    }  # fmt: skip


def register(app: Dash, context: Context) -> None:
    """Filters, choosing, and the job file."""

    @app.callback(
        Output(PARETO, "figure"), Output(PARALLEL, "figure"), Output(ORDERS, "figure"), Output(TABLE, "rowData"),
        Output(REFUSED, "rowData"), Output("configurations-words", "children"),
        Output("configurations-model", "children"), Output("configurations-refused", "children"),
        Output("configurations-pair", "children"), Output("configurations-problem", "children"),
        *(Input(state(key), "value") for key in (*FILTERS, "pair")), State("address", "search"),
        prevent_initial_call=True,
    )  # fmt: skip
    def narrow(*given: Any) -> Any:
        *values, search = given
        query = query_of(search) | {
            key: ",".join(map(str, value)) if isinstance(value, list) else str(value or "")
            for key, value in zip((*FILTERS, "pair"), values, strict=True)
        }
        try:
            found = opened(context, query)
        except DescriptionError as error:
            return *(no_update,) * 9, str(error)
        kept, chosen = filtered(found, query), pair_of(query.get("pair", ""), found)
        return (*figures(kept, chosen), able(kept), unable(kept), summary_of(found, kept), model_summary(kept),
                _refused_words(kept), comparison(chosen), "")  # fmt: skip

    @app.callback(
        Output(state("pair"), "value"), Output(TABLE, "selectedRows"), Input(TABLE, "selectedRows"),
        Input(PARETO, "clickData"), State(state("pair"), "value"), prevent_initial_call=True,
    )  # fmt: skip
    def choose(rows: Any, clicked: Any, before: Any) -> Any:
        old = [word for word in str(before or "").split(",") if word]
        if ctx.triggered_id == PARETO:
            points = clicked.get("points") if isinstance(clicked, dict) else None
            number = points[0].get("customdata") if points else None
            if not isinstance(number, int):
                return no_update, no_update
            new = [*(n for n in old if n != str(number)), str(number)][-2:]
            return ",".join(new), {"ids": new}
        if not isinstance(rows, list):
            return no_update, no_update
        there = [str(r.get("id", "")) for r in rows if isinstance(r, dict)]
        new = [*(n for n in old if n in there), *(n for n in there if n not in old)][-2:]
        return (",".join(new) if new != old else no_update), ({"ids": new} if len(there) > 2 else no_update)

    @app.callback(
        Output("configurations-file", "data"), Output("configurations-problem", "children", allow_duplicate=True),
        Input({"type": "candidate", "number": ALL}, "n_clicks"), State("address", "search"), prevent_initial_call=True,
    )  # fmt: skip
    def save(clicks: Any, search: Any) -> Any:
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
            return no_update, str(error)
        return {"content": content, "filename": f"{chosen[0].name.replace(' × ', 'x')}.yaml"}, ""


PAGE = Page("/configurations", "Configurations", shown, register, needs="run")
