"""Files of what the timeline shows: ops as CSV, and as a Chrome trace that Perfetto opens; of one run or two."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dash import Dash, Input, Output, State, ctx, no_update
from pyarrow import csv

from dashboards.catalog import Entry
from dashboards.page import PageContext, state
from dashboards.parts import reasons
from dashboards.query import query_of
from dashboards.timeline.opened import opened, view_of
from dashboards.timeline.view import all_ranks
from twin.description.problems import DescriptionError
from twin.trace.chrome import chrome_text

MAX_OPS = 200_000
"""Of a file that goes through the browser, some 60 MB; of more the command line writes it."""
APART = 1_000_000
"""Added to the ranks of the second run, so that both stand in one file."""


def save(context: PageContext, _csv: Any, _chrome: Any, ranks: Any, search: Any) -> Any:
    """Give the ops of the step and ranks that are shown."""
    if not ctx.triggered_id:
        return no_update, no_update
    query = {**query_of(search), "ranks": str(ranks or "")}
    try:
        pair, _ = opened(context, query)
        chosen = view_of(query, pair).ranks or tuple(all_ranks(pair))
        entries = [context.catalog.entry(query[key]) for key in ("run", "other") if query.get(key)]
        if [entry.kind for entry in entries] == ["measured", "predicted"]:
            entries.reverse()
        tables = [ops_of(context, entry, step.number, chosen) for entry, step in zip(entries, pair.steps, strict=True)]
    except DescriptionError as error:
        return no_update, reasons(error)
    total = sum(table.num_rows for table in tables)
    if total > MAX_OPS:
        words = f"{total:,} ops are too many for a file through the browser: name fewer ranks, or use the command line"
        return no_update, words
    if ctx.triggered_id == "timeline-csv":
        return {"content": as_csv(tables, pair.labels), "filename": "timeline.csv"}, f"{total:,} ops saved."
    content = as_chrome(tables, pair.labels)
    return {"content": content, "filename": "timeline.json", "type": "application/json"}, f"{total:,} ops saved."


def ops_of(context: PageContext, entry: Entry, step: int, ranks: tuple[int, ...]) -> pa.Table:
    """Return the events of a step and of some ranks. Raises DescriptionError."""
    table = context.catalog.trace(entry).events
    at = pc.and_(pc.equal(table["step"], step), pc.is_in(table["rank"], pa.array(ranks, table["rank"].type)))
    return table.filter(at)


def as_csv(tables: list[pa.Table], labels: tuple[str, ...]) -> str:
    """Write ops with the run of each in a first column."""
    parts = []
    for table, label in zip(tables, labels, strict=True):
        plain = [
            column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in table.columns
        ]
        run = pa.array([label] * table.num_rows, pa.string())
        parts.append(pa.table([run, *plain], names=["run", *table.column_names]))
    buffer = io.BytesIO()
    csv.write_csv(pa.concat_tables(parts), buffer)
    return buffer.getvalue().decode()


def as_chrome(tables: list[pa.Table], labels: tuple[str, ...]) -> str:
    """Write a Chrome trace: a process each rank of each run, the clocks of both set to zero."""
    moved, names = [], {}
    for number, (table, label) in enumerate(zip(tables, labels, strict=True)):
        begin = pc.min(pc.min_element_wise(table["start_ns"], table["arrival_ns"])).as_py() if table.num_rows else 0
        apart = APART * number
        for rank in np.unique(table["rank"].to_numpy()).tolist():
            names[rank + apart] = f"rank {rank}, {label}"
        changed = table.set_column(
            table.column_names.index("rank"), "rank", pc.cast(pc.add(table["rank"], apart), table["rank"].type)
        )
        for name in ("start_ns", "end_ns", "arrival_ns"):
            changed = changed.set_column(table.column_names.index(name), name, pc.subtract(changed[name], begin))
        moved.append(changed)
    return chrome_text(pa.concat_tables(moved).unify_dictionaries(), names)


def register_files(app: Dash, context: PageContext) -> None:
    """Two buttons, a file each."""
    app.callback(
        Output("timeline-file", "data"),
        Output("timeline-words", "children", allow_duplicate=True),
        Input("timeline-csv", "n_clicks"),
        Input("timeline-chrome", "n_clicks"),
        State(state("ranks"), "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(save, context))
