"""What stands below the timeline's picture, and comes when that is seen."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update

from dashboards.page import PageContext, state
from dashboards.pages.timeline_open import CHOICES, open_all
from dashboards.pages.timeline_parts import WORST, WORST_PLACE, worst_table
from dashboards.query import query_of
from twin.description.problems import DescriptionError

PICKED, SEEN = "timeline-picked", "timeline-seen"


def register_later(app: Dash, context: PageContext) -> None:
    """Tables below the picture come when it is drawn: their scripts and cells would hold it up."""
    app.clientside_callback(ClientsideFunction("fourfold", "drawn"), Output(SEEN, "data"), Input(SEEN, "storage_type"))
    # A table that is new reports that nothing is chosen: asked of the server, that would supersede a zoom. So what is
    # chosen is written by the script, and not an output, for which Dash would keep the drawing waiting.
    app.clientside_callback(
        ClientsideFunction("fourfold", "picked"),
        Input(WORST, "selectedRows", allow_optional=True),
        prevent_initial_call=True,
    )
    app.callback(
        Output(WORST_PLACE, "children", allow_duplicate=True),
        Input(SEEN, "data"),
        *(State(state(key), "value") for key in CHOICES),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(list_worst, context))


def list_worst(context: PageContext, _seen: Any, *arguments: Any) -> Any:
    """List the ops that differ most, or take longest, of the lanes that are drawn."""
    *values, search = arguments
    wanted = dict(zip(CHOICES, values, strict=True))
    try:
        query = {**query_of(search), **{key: str(value or "") for key, value in wanted.items()}}
        found = open_all(context, query, meet=False)
    except DescriptionError:
        return no_update
    return worst_table(found.pair, found.laid)
