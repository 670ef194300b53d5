"""Pieces that every page is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import dash_ag_grid as dag
import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

GRAPH_CONFIG: Mapping[str, Any] = {
    "displaylogo": False,
    "showSendToCloud": False,
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "sendDataToCloud", "sendChartToCloud"],
    "toImageButtonOptions": {"format": "svg", "filename": "fourfold"},
}
"""No button sends a figure anywhere."""


FITTED = {"autoSizeStrategy": {"type": "fitCellContents", "scaleUpToFitGridWidth": True}}
NUMBER = {"valueFormatter": {"function": "params.value == null ? '' : d3.format('.6~g')(params.value)"}}
"""The look of a column of numbers; a file gets all digits."""


def aria(label: str, **more: str) -> dict[str, Any]:
    """Attributes that say what something is to those who do not see it."""
    return {"aria-label": label, **{f"aria-{name}": value for name, value in more.items()}}


def graph(identifier: str, figure: go.Figure | None = None, *, label: str, height: int = 420) -> Component:
    """Show a figure; `label` says to those who cannot see it what it is."""
    inside = dcc.Graph(
        id=identifier,
        figure=go.Figure() if figure is None else figure,
        config=cast("Any", dict(GRAPH_CONFIG)),
        style={"height": f"{height}px"},
        responsive=True,
    )
    return html.Div(inside, role="figure", **aria(label))


def finished(figure: go.Figure, **layout: Any) -> go.Figure:
    """Give a figure the look of all: no background, colours of text and grid from the page."""
    figure.update_layout(
        template="plotly_white",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 70, "r": 20, "t": 30, "b": 50},
        font={"size": 13},
        **layout,
    )
    return figure


def escape(text: str) -> str:
    """Make text safe where Plotly reads markup.

    >>> escape("<b>a & b</b>")
    '&lt;b&gt;a &amp; b&lt;/b&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def table(
    identifier: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Mapping[str, Any]] | None = None,
    *,
    height: int = 360,
    **options: Any,
) -> Component:
    """Show rows, to be sorted, filtered and downloaded as CSV."""
    if columns is None:
        columns = [{"field": name, "headerName": name} for name in (rows[0] if rows else {})]
    numeric = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    columns = [{**NUMBER, **column} if column["field"] in numeric else column for column in columns]
    options["dashGridOptions"] = {**FITTED, **options.get("dashGridOptions", {})}
    return html.Div(
        [
            dag.AgGrid(
                id=identifier,
                rowData=[dict(row) for row in rows],
                columnDefs=[dict(column) for column in columns],
                defaultColDef={
                    "sortable": True,
                    "filter": True,
                    "resizable": True,
                    "minWidth": 90,
                    "useValueFormatterForExport": False,
                },
                csvExportParams={"fileName": f"{identifier}.csv"},
                style={"height": f"{height}px"},
                className="ag-theme-quartz grid",
                **options,
            ),
            dmc.Button("Download as CSV", id={"type": "csv", "table": identifier}, variant="default", size="xs", mt=6),
        ]
    )


def card(title: str, summary: str | Component, *content: Component, identifier: str = "") -> Component:
    """A section: heading, one sentence that says what is seen, and the content."""
    named = {"id": identifier} if identifier else {}
    return dmc.Paper(
        [dmc.Title(title, order=2, size="h4"), dmc.Text(summary, size="sm", c="var(--quiet)", mb="xs"), *content],
        withBorder=True,
        p="md",
        radius="md",
        mb="md",
        **named,
    )


def with_table(figure: Component, rows: Component) -> Component:
    """A figure and its twin as a table."""
    return dmc.Tabs(
        [
            dmc.TabsList([dmc.TabsTab("Figure", value="figure"), dmc.TabsTab("Table", value="table")], mb="xs"),
            dmc.TabsPanel(figure, value="figure"),
            dmc.TabsPanel(rows, value="table"),
        ],
        value="figure",
        keepMounted=True,
    )


def problem(text: str) -> Component:
    """Say what is wrong, as text whatever it holds."""
    return dmc.Alert(text, title="This cannot be shown", color="orange", variant="light", mb="md", className="problem")


def seconds(value: float, digits: int = 4) -> str:
    """Write a time with a unit that suits it.

    >>> seconds(0.00123), seconds(2.5), seconds(-0.02)
    ('1.23 ms', '2.5 s', '-20 ms')
    """
    size = abs(value)
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= factor:
            return f"{value / factor:.{digits}g} {unit}"
    return f"{value * 1e9:.{digits}g} ns" if value else "0 s"
