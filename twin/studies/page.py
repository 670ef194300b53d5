"""One self-contained HTML page of a study: pictures and the table of its points."""

from __future__ import annotations

from collections.abc import Sequence

from twin.pages.picture import Picture
from twin.pages.shell import filled
from twin.studies.derived import Row
from twin.studies.table import Column, cell

MAX_ROWS = 1000
"""Rows of a table in the page: more are slow to lay out, and nobody reads them there."""


def page(
    title: str,
    facts: Sequence[tuple[str, str]],
    drawn: Sequence[Picture],
    tables: Sequence[tuple[str, Sequence[Column]]],
    rows: Sequence[Row],
) -> str:
    """Return the page."""
    note = f"The first {MAX_ROWS:,} of {len(rows):,}; all are in table.csv." if len(rows) > MAX_ROWS else ""
    return filled(
        "twin.studies",
        "page.html",
        title=title,
        facts=facts,
        data=[{"data": picture.data, "layout": picture.layout} for picture in drawn],
        plotly=True,
        drawn=drawn,
        tables=tables,
        rows=rows[:MAX_ROWS],
        note=note,
        cell=cell,
    )
