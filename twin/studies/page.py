"""One self-contained HTML page of a study: pictures and the table of its points.

Nothing is loaded from elsewhere, and every word of the study file is escaped.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib import resources

from twin.studies.derived import Row
from twin.studies.figures import Picture
from twin.studies.table import Column, cell

MAX_ROWS = 1000


def page(
    title: str,
    facts: Sequence[tuple[str, str]],
    drawn: Sequence[Picture],
    tables: Sequence[tuple[str, Sequence[Column]]],
    rows: Sequence[Row],
) -> str:
    """Return the page."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - slow to import, needed only here

    template = resources.files("twin.studies").joinpath("page.html").read_text(encoding="utf-8")
    plots = [f'<h2>{_text(p.title)}</h2><p>{_text(p.note)}</p><div id="plot{i}"></div>' for i, p in enumerate(drawn)]
    data = json.dumps([{"data": p.data, "layout": p.layout} for p in drawn], separators=(",", ":"))
    note = f"<p>The first {MAX_ROWS:,} of {len(rows):,}; all are in table.csv.</p>" if len(rows) > MAX_ROWS else ""
    parts = {
        "TITLE": _text(title),
        "FACTS": "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts),
        "PLOTS": "\n".join(plots),
        "TABLES": "\n".join(
            f'<h2>{_text(name)}</h2>{note}<div class="scroll">{_table(columns, rows[:MAX_ROWS])}</div>'
            for name, columns in tables
        ),
        "PLOTLY": get_plotlyjs(),
        "DATA": data.replace("<", "\\u003c"),  # neither </script> nor <!-- may be seen
    }
    # in one pass, so that a study that is named like a placeholder keeps its name
    return re.sub(r"%(TITLE|FACTS|PLOTS|TABLES|PLOTLY|DATA)%", lambda match: parts[match[1]], template)


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{_text(column.title)}</th>" for column in columns)
    body = []
    for row in rows:
        cells = "".join(
            f"<td{' class=reason' if column.key == 'reason' else ''}>{_text(cell(column, row))}</td>"
            for column in columns
        )
        body.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _text(words: str) -> str:
    # control characters and lone surrogates have no place in HTML
    plain = "".join(c if c.isprintable() else "�" for c in words)
    return html.escape(plain)
