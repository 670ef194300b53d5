"""Pieces that every page is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import dash_ag_grid as dag
import dash_mantine_components as dmc
import plotly.graph_objects as go
import plotly.io as pio
from dash import dcc, html
from dash.development.base_component import Component

from twin.description.problems import DescriptionError
from twin.description.units import format_seconds

GRAPH_CONFIG: Mapping[str, Any] = {
    "displaylogo": False,
    "showSendToCloud": False,
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "sendDataToCloud", "sendChartToCloud"],
    "toImageButtonOptions": {"format": "svg", "filename": "fourfold"},
}
"""No button sends a figure anywhere."""


FITTED = {
    "autoSizeStrategy": {"type": "fitCellContents", "scaleUpToFitGridWidth": True},
    "suppressColumnVirtualisation": True,
}
"""Columns as wide as what they hold: one out of view is not drawn otherwise, and keeps a width that shifts it out."""
HEAD_PIXELS, ROW_PIXELS = 66, 42
"""Of a table: its head with what frames it and a bar to scroll by, and a row."""
FEW_ROWS = 6
"""None of so few rows is to be filtered out, and the menu of a filter would be higher than their table."""
NUMBER = {"valueFormatter": {"function": "number(params.value)"}}


def _measured(unit: str, written: str) -> dict[str, Any]:
    """Return the look of a column whose unit stands in cells, with a prefix each; a filter takes it without one."""
    words = f"in {unit}"
    return {
        "valueFormatter": {"function": written},
        "headerValueGetter": {"function": "heading(params)"},
        "headerTooltip": words,
        "filterParams": {"filterPlaceholder": words},
    }


SECONDS = _measured("seconds", "seconds(params.value)")
BYTES = _measured("bytes", "quantity(params.value, '(B)')")
RATE = _measured("bytes per second", "quantity(params.value, '(B/s)')")
UNITS = {"(s)": SECONDS, "(B)": BYTES, "(B/s)": RATE}
"""The looks of columns of numbers, of seconds, bytes and rates, whose unit stands in cells; a file has all digits."""
MOMENT = {"valueFormatter": {"function": "moment(params.value)"}}
"""The look of a column of milliseconds since the epoch: time where the visitor is."""
TEMPLATE = go.layout.Template(layout=pio.templates["plotly_white"].layout)
TEMPLATE.layout.yaxis.ticklabelstandoff = 4  # else names touch what they name
TEMPLATE.layout.xaxis.separatethousands = TEMPLATE.layout.yaxis.separatethousands = True
"""The look of axes alone: what Plotly's own says of every kind of trace costs a tenth of a second a figure to copy."""


MAX_REASONS = 5
"""Of what is wrong, that are said."""
HYPHEN = re.compile(r"(?<![\w.)\]-])-(?=\d)")


def minus(text: str) -> str:
    """Write negative numbers with the sign for minus, as the axes of figures have it; ranges and dates stay.

    >>> minus("-36.0 % of ranks 0-3, 2026-11-25")
    '−36.0 % of ranks 0-3, 2026-11-25'
    """
    return HYPHEN.sub("−", text)


def seconds(value: float) -> str:
    """Write a time as the terminal does, with the sign for minus.

    >>> seconds(-3.7e-6)
    '−3.7 µs'
    """
    return minus(format_seconds(value or 0.0))  # nothing has no sign


def percent(value: float, digits: int = 1) -> str:
    """Write a change in percent, with its sign.

    >>> percent(-36.04), percent(12.3, 0), percent(-0.01)
    ('−36.0 %', '+12 %', '+0.0 %')
    """
    return minus(f"{round(value, digits) + 0.0:+.{digits}f} %")  # adding 0 takes the sign of -0 away


def aria(label: str, **more: str) -> dict[str, Any]:
    """Attributes that say what something is to those who do not see it."""
    return {"aria-label": label, **{f"aria-{name}": value for name, value in more.items()}}


def graph(identifier: str, figure: go.Figure | None = None, *, label: str, height: int = 420) -> Component:
    """Show a figure; `label` says to those who cannot see it what it is.

    Arrow keys go from point to point, Enter chooses one.
    """
    inside = dcc.Graph(
        id=identifier,
        figure=go.Figure() if figure is None else figure,
        config=cast("Any", dict(GRAPH_CONFIG)),
        style={"height": f"{height}px"},
        responsive=True,
    )
    return html.Div(inside, role="figure", tabIndex=0, className="figure", **aria(label))


def finished(figure: go.Figure, **layout: Any) -> go.Figure:
    """Give a figure the look of all: no background, colours of text and grid from the page."""
    figure.update_layout(
        template=TEMPLATE,
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
    grows: bool = False,
    **options: Any,
) -> Component:
    """Show rows, to be sorted, filtered and downloaded as CSV.

    Where they need less than `height` pixels the table is as high as they are, but where more may come (`grows`).
    """
    low = not grows and 0 < len(rows) <= (height - HEAD_PIXELS) // ROW_PIXELS
    if columns is None:
        columns = [{"field": name, "headerName": name} for name in (rows[0] if rows else {})]
    numeric = {name for row in rows for name, value in row.items() if type(value) in (int, float)}
    timed = {column["field"] for column in columns if _unit(column) in UNITS}
    columns = [_looking(column) if column["field"] in numeric | timed else column for column in columns]
    fitted = {**FITTED, "domLayout": "autoHeight"} if low else FITTED
    options["dashGridOptions"] = {**fitted, **options.get("dashGridOptions", {})}
    return html.Div(
        [
            dag.AgGrid(
                id=identifier,
                rowData=[dict(row) for row in rows],
                columnDefs=[dict(column) for column in columns],
                defaultColDef={
                    "sortable": True,
                    "filter": len(rows) > FEW_ROWS or not low,
                    "resizable": True,
                    "minWidth": 90,
                    "useValueFormatterForExport": False,
                },
                csvExportParams={"fileName": f"{identifier}.csv"},
                style={"height": None if low else f"{height}px"},
                className="ag-theme-quartz grid",
                **options,
            ),
            dmc.Button("Download as CSV", id={"type": "csv", "table": identifier}, variant="default", size="xs", mt=6),
        ]
    )


def _looking(column: Mapping[str, Any]) -> dict[str, Any]:
    """Give a column of numbers its look: times and sizes with a unit each."""
    return {**UNITS.get(_unit(column), NUMBER), **column}


def _unit(column: Mapping[str, Any]) -> str:
    return str(column.get("headerName", "")).rpartition(" ")[2]


def seconds_axis(title: str = "") -> dict[str, Any]:
    """Return the look of an axis of seconds: each tick with a unit that suits it."""
    return {"title": title, **seconds_ticks()}


def bytes_axis(title: str = "") -> dict[str, Any]:
    """Return the look of an axis of bytes: each tick with a unit that suits it."""
    return {"title": title, "ticksuffix": "B", "tickformat": "~s"}


def seconds_ticks() -> dict[str, Any]:
    """Return how ticks of seconds are written, such as 20ms."""
    return {"ticksuffix": "s", "tickformat": "~s"}


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


def reasons(error: DescriptionError) -> str:
    """Say what is wrong in a sentence each, without the count that a terminal begins with."""
    return "; ".join(map(str, error.problems[:MAX_REASONS]))


def problem(what: str | DescriptionError, *more: Component) -> Component:
    """Say what is wrong, as text whatever it holds, and offer what helps."""
    text = reasons(what) if isinstance(what, DescriptionError) else what
    inside = [dmc.Text(text, size="sm"), *more] if more else text
    return dmc.Alert(
        inside, title="This cannot be shown", color="orange", variant="light", mb="md", className="problem"
    )
