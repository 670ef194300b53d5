"""Rank map: a heat map over the grid axes, where slow ranks, hosts and axes show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from dashboards.catalog import Entry
from dashboards.diagnosis import Shown, diagnosis_of
from dashboards.events import Floats
from dashboards.figures.rank_map import rank_map, spread
from dashboards.page import Page, PageContext, Query, state
from dashboards.parts import aria, card, graph, seconds, table, with_table
from dashboards.query import query_of
from dashboards.rank_table import RankTable, label_of, rank_table_of
from twin.description.problems import DescriptionError, fail

MAP = "rank-map"
SECONDS = "_seconds"
"""How names of figures end that are times."""
WORST = 12
"""Ranks in the table of the slowest: as many as stand beside the map without scrolling."""
LOOK_MILLISECONDS = 5000
"""Interval between two looks for a running job's alerts."""


def shown(context: PageContext, query: Query) -> Component:
    """Show one figure of every rank of a run; of a pair that of the measured one, or of the other if asked for."""
    entry = side_of(context, query)
    found = rank_table_of(context.catalog, entry)
    figure = query.get("figure", "")
    name = figure if figure in found.figures else found.names[0]
    values, label = found.figures[name], label_of(name)
    known = values[~np.isnan(values)]
    written = written_as(name)
    summary = (
        f"{entry.label} ({entry.kind}): {label} of {len(known):,} of {found.grid.ranks:,} ranks; "
        f"median {written(float(np.median(known)))}, largest {written(float(known.max()))} on rank "
        f"{int(np.nanargmax(values)):,}."
    )
    who = diagnosis_of(context.catalog, entry)
    return html.Div(
        [
            diagnosis_card(who),
            card(
                "Every rank",
                summary,
                dmc.Group([_figures(found, name), *_sides(query, entry)]),
                with_table(
                    graph(
                        MAP,
                        rank_map(values, found.grid, label, who.ranks, seconds=name.endswith(SECONDS)),
                        label=summary,
                        height=520,
                    ),
                    table("rank-table", rows(found, list(np.argsort(-np.nan_to_num(values, nan=-1.0)))[:2000])),
                ),
                dmc.Text("Choose a rank to see its timeline.", size="sm"),
            ),
            dmc.SimpleGrid(
                [
                    spread_card(values, name),
                    card(
                        "Means along the axes",
                        "A mean for each place along an axis: a slow host, link or replica is above its neighbours.",
                        _means_table(axis_means(found, name)),
                    ),
                ],
                cols={"base": 1, "lg": 2},
            ),
            dcc.Location(id="rank-leads", refresh="callback-nav"),
            dcc.Location(id="rank-again", refresh=True),
            dcc.Store(id="rank-changed", data=entry.changed),
            dcc.Interval(id="rank-look", interval=LOOK_MILLISECONDS, disabled=entry.kind != "watch"),
        ]
    )


def spread_card(values: Floats, name: str) -> Component:
    """Show how a figure is spread; where all ranks have one value it is said, for a bar's width would be invented."""
    known, label = values[~np.isnan(values)], label_of(name)
    if known.min() == known.max():
        whose = "the only rank that is known" if len(known) == 1 else f"all {len(known):,} ranks that are known"
        return card("Spread", f"{written_as(name)(float(known[0]))} is {label} of {whose}: nothing is spread.")
    figure = graph(
        "spread", spread(values, label, seconds=name.endswith(SECONDS)), label=f"Histogram of {label}", height=300
    )
    return card("Spread", f"How {label} is spread over ranks.", figure)


def side_of(context: PageContext, query: Query) -> Entry:
    """Return the run that is drawn: of two the measured one, unless the address asks for the predicted one."""
    if "run" not in query:
        raise fail("run", "choose a run on the page Runs first")
    entries = [context.catalog.entry(query[key]) for key in ("run", "other") if query.get(key)]
    wanted = query.get("side") or "measured"
    return next((entry for entry in entries if entry.kind == wanted), entries[0])


def _figures(found: RankTable, name: str) -> Component:
    choices = [{"value": one, "label": label_of(one)} for one in found.names]
    return dmc.Select(
        id=state("figure"), data=choices, value=name, w=330, allowDeselect=False, mb="xs", **aria("figure")
    )


def _sides(query: Query, entry: Entry) -> list[Component]:
    """Offer a switch between the two runs of a pair."""
    if not query.get("other"):
        return []
    return [
        dmc.SegmentedControl(
            id=state("side"), data=["measured", "predicted"], value=entry.kind, size="xs", mb="xs", **aria("which run")
        )
    ]


def written_as(name: str) -> Callable[[float], str]:
    """Return how values of a figure are written: times with their unit, ratios as they are."""
    return seconds if name.endswith(SECONDS) else "{:.4g}".format


def diagnosis_card(who: Shown) -> Component:
    """Say who is slow, if anybody."""
    notes: list[Component] = [dmc.Text(note, size="sm") for note in who.notes]
    if who.why_not:
        return html.Div(dmc.Text(who.why_not, size="sm"), style={"marginBottom": "12px"})
    if who.not_located:
        said = f"{'But' if who.assumed else 'Not located:'} {who.not_located}"
        notes.insert(0, dmc.Alert(title=said, color="yellow" if who.assumed else "red", variant="light", mb="xs"))
    if not who.findings:
        found = "Nothing found" if who.assumed or not who.not_located else "Not located"
        return card("Diagnosis", f"{found}: no rank, host, link or axis stands out.", *notes)
    alerts = [
        dmc.Alert(
            [dmc.Text(each.evidence, size="sm")],
            title=f"{each.text} ({100 * each.confidence:.1f} % sure)",
            color="red",
            variant="light",
            mb="xs",
        )
        for each in who.findings
    ]
    count = len(who.findings)
    return card(
        "Diagnosis", f"{count} finding{'s' if count > 1 else ''}; ranks that are named are crossed.", *alerts, *notes
    )


def rows(found: RankTable, ranks: list[Any]) -> list[dict[str, Any]]:
    """Describe ranks, all figures."""
    made = []
    for rank in map(int, ranks):
        at: dict[str, Any] = {str(axis): place for axis, place in found.grid.coordinates(rank).items()}
        figures = {
            label_of(name) + (" (s)" if name.endswith(SECONDS) else ""): _plain(values[rank])
            for name, values in found.figures.items()
        }
        made.append({"rank": rank, **at, **figures})
    return made


def axis_means(found: RankTable, name: str) -> list[dict[str, Any]]:
    """The highest of the means of each axis' places, and how far above the median of these means it lies."""
    values = found.figures[name].reshape(found.grid.sizes)
    made, unit = [], " (s)" if name.endswith(SECONDS) else ""
    for number, (axis, size) in enumerate(zip(found.grid.axes, found.grid.sizes, strict=True)):
        if size == 1:
            continue
        others = tuple(i for i in range(len(found.grid.sizes)) if i != number)
        count = (~np.isnan(values)).sum(axis=others)
        mean = np.nansum(values, axis=others) / np.maximum(count, 1)
        at = int(np.argmax(np.where(count > 0, mean, -np.inf)))
        middle = float(np.median(mean[count > 0]))
        made.append(
            {
                "axis": axis,
                "highest at": at,
                f"mean there{unit}": _plain(mean[at]),
                f"median mean{unit}": _plain(middle),
                "above (%)": round(100 * (mean[at] / middle - 1), 2) if middle else None,
            }
        )
    return made


def _means_table(means: list[dict[str, Any]]) -> Component:
    """Show the means along axes: of a few rows none is to be filtered out, and without that all columns have room."""
    columns = [{"field": field, "headerName": field, "filter": False} for field in (means[0] if means else {})]
    return table("axis-means", means, columns, height=300)


def with_events(context: PageContext, query: Query, rank: Any) -> str:
    """Return the rank whose timeline a chosen one leads to: of a folded one that which stands for it."""
    try:
        stands = rank_table_of(context.catalog, side_of(context, query)).stands
    except DescriptionError:
        return str(rank)
    return str(stands.get(rank, rank))


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.6g}")


def register(app: Dash, context: PageContext) -> None:
    """Another figure is another address; a rank leads to its timeline."""
    prefix = context.settings.prefix.rstrip("/")

    @app.callback(
        Output("rank-leads", "href"),
        Input(MAP, "clickData"),
        Input(state("figure"), "value"),
        Input({"type": "state", "key": "side"}, "value", allow_optional=True),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def lead(clicked: Any, figure: str | None, side: str | None, search: str | None) -> Any:
        query = query_of(search)
        if clicked:
            rank = with_events(context, query, clicked["points"][0].get("customdata", ""))
            pair = {key: query[key] for key in ("run", "other") if query.get(key)}
            return f"{prefix}/timeline?{urlencode({**pair, 'ranks': rank})}"
        if side and side != query.get("side", "measured"):
            return f"{prefix}/ranks?{urlencode({**query, 'side': side})}"
        if figure and figure != query.get("figure"):
            return f"{prefix}/ranks?{urlencode({**query, 'figure': figure})}"
        return no_update

    @app.callback(
        Output("rank-again", "href"),
        Input("rank-look", "n_intervals"),
        State("rank-changed", "data"),
        State("address", "search"),
        State("address", "pathname"),
        prevent_initial_call=True,
    )
    def look(_times: int, known: float, search: str | None, path: str) -> Any:
        try:
            changed = context.catalog.entry(query_of(search).get("run", "")).changed
        except DescriptionError:
            return no_update
        return no_update if changed == known else f"{path}{search or ''}"


PAGE = Page("/ranks", "Rank map", shown, register, needs="run,other", kinds=("predicted", "measured", "watch"), runs=1)
