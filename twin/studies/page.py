"""One self-contained HTML page of a study: pictures and the table of its points."""

from __future__ import annotations

from collections.abc import Sequence

from twin.pages.picture import Picture
from twin.pages.shell import filled
from twin.studies.table import Table, cell

MAX_ROWS = 1000
"""Rows of a table in the page: more are slow to lay out, and nobody reads them there."""


def page(title: str, facts: Sequence[tuple[str, str]], drawn: Sequence[Picture], tables: Sequence[Table]) -> str:
    """Return the page."""
    return filled(
        "twin.studies",
        "page.html",
        title=title,
        facts=facts,
        data=[{"data": picture.data, "layout": picture.layout} for picture in drawn],
        plotly=True,
        drawn=drawn,
        tables=[(table, _note(table)) for table in tables],
        most=MAX_ROWS,
        cell=cell,
    )


def _note(table: Table) -> str:
    many = len(table.rows)
    return f"The first {MAX_ROWS:,} of {many:,}; all are in table.csv." if many > MAX_ROWS else ""
