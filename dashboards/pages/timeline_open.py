"""What an address of the timeline names: opened, paired and laid out, or taken from what was."""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.events import Events
from dashboards.page import PageContext, Query
from dashboards.timeline.lanes import Lanes, lanes
from dashboards.timeline.meetings import Meetings, meetings_of
from dashboards.timeline.opened import opened, view_of
from dashboards.timeline.view import Pair, View

CHOICES = ("ranks", "pins", "turned", "lay", "show", "colour", "align", "path")
"""Controls that say what is drawn, and how."""


@dataclass(frozen=True)
class Opened:
    """What an address says is to be drawn, read and laid out."""

    pair: Pair
    events: tuple[Events, ...]
    view: View
    laid: Lanes
    meetings: tuple[Meetings, ...]


def laid_out(context: PageContext, query: Query, pair: Pair, view: View) -> Lanes:
    """Lay out what is wanted, or take what was laid out for the last window."""
    entry = context.catalog.entry(query["run"])
    what = f"lanes {query.get('other')} {pair.steps[-1].number} {view}"
    return context.catalog.kept(entry, what, lambda: lanes(pair, view))


def open_all(context: PageContext, query: Query, *, meet: bool) -> Opened:
    """Open and lay out what an address names; `meet` finds out who met whom. Raises DescriptionError."""
    pair, events = opened(context, query)
    view = view_of(query, pair)
    laid = laid_out(context, query, pair, view)
    met: tuple[Meetings, ...] = ()
    if meet:
        entry = context.catalog.entry(query["run"])
        what = f"met {query.get('other')} {pair.steps[-1].number} {view.align}"
        met = context.catalog.kept(
            entry, what, lambda: tuple(meetings_of(step, of) for step, of in zip(pair.steps, events, strict=True))
        )
    return Opened(pair, events, view, laid, met)
