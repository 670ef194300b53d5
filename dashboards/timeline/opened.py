"""The one or two runs that an address names, their ops paired, and what a visitor wants to see of them."""

from __future__ import annotations

from collections.abc import Mapping

from dashboards.catalog import Entry
from dashboards.events import Events, events_of, mesh_of
from dashboards.page import PageContext, Query
from dashboards.standing import stand_ins
from dashboards.timeline.step import Step, step_of
from dashboards.timeline.view import Pair, View, all_ranks, paired, parse_ranks
from twin.description.grid import Mesh
from twin.description.problems import DescriptionError, Problem, fail

MAX_PINS = 16
"""Ranks that stand above all others: more would leave no room for these."""
MAX_TURNED = 16
"""Ranks laid out the other way: of many, lanes of all are changed at once."""

RANKS_OF = ("ranks", "pins", "turned")
"""Fields that name ranks."""


def opened(context: PageContext, query: Query) -> tuple[Pair, tuple[Events, ...]]:
    """Open the one or two runs that an address names, and pair their ops. Raises DescriptionError."""
    if "run" not in query:
        raise fail("run", "choose one run, or two, on the page Runs first")
    entries = [context.catalog.entry(query[key]) for key in ("run", "other") if key in query]
    if [e.kind for e in entries] == ["measured", "predicted"]:
        entries.reverse()
    events = tuple(events_of(context.catalog, entry) for entry in entries)
    kinds = [entry.kind or "" for entry in entries]
    labels = tuple(kinds if len(set(kinds)) == len(kinds) else ("first", "second"))
    number = int(query["step"]) if query.get("step", "").isdecimal() and len(query["step"]) < 10 else None
    align = query.get("align", "")

    def made() -> Pair:
        steps = tuple(_step(e, of, number) for e, of in zip(entries, events, strict=True))
        stands_for = tuple(stand_ins(context.catalog, e, of) for e, of in zip(entries, events, strict=True))
        return paired(labels, steps, align, stands_for, *_places(entries[0]))

    what = f"pair {[(e.name, e.changed) for e in entries]} {number} {align}"
    return context.catalog.kept(entries[-1], what, made), events


def _places(entry: Entry) -> tuple[Mesh | None, int]:
    """Return the grid of a run's job, and how many ranks a host of it has; None and 0 where it does not say."""
    job = entry.head.get("job")
    machine = job.get("machine") if isinstance(job, Mapping) else None
    devices = machine.get("devices_per_node") if isinstance(machine, Mapping) else None
    size = devices.get("value") if isinstance(devices, Mapping) else devices
    return mesh_of(job.get("grid") if isinstance(job, Mapping) else None), size if type(size) is int else 0


def _step(entry: Entry, events: Events, number: int | None) -> Step:
    """A predicted run has one step, whatever its number; a measured one that which is asked for."""
    return step_of(events, number if entry.kind == "measured" or number in events.steps else None)


def view_of(query: Query, pair: Pair) -> View:
    """Read the choices of an address. Raises DescriptionError with what is wrong with each field of ranks."""
    known, named = all_ranks(pair), dict[str, tuple[int, ...]]()
    problems: list[Problem] = []
    for key in RANKS_OF:
        try:
            named[key] = parse_ranks(query.get(key, ""), known, key)
        except DescriptionError as error:
            problems += error.problems
    if problems:
        raise DescriptionError(problems)
    return View(
        named["ranks"],
        query.get("show", ""),
        query.get("colour", "kind"),
        query.get("align", ""),
        named["pins"][:MAX_PINS],
        named["turned"][:MAX_TURNED],
        query.get("lay", ""),
    )
