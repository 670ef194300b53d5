"""One row per rank: how long it computes, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.parquet as pq

from dashboards.catalog import Catalog, Entry
from dashboards.events import Floats, events_of, grid_of
from dashboards.standing import stand_ins
from dashboards.waiting import held, queues
from twin.description.grid import Axes
from twin.description.problems import fail

RANKS = "ranks.parquet"
MAX_RANKS = 1 << 20
"""More than any machine has; a table of more is damaged or would fill the memory."""
LABELS = {
    "compute_seconds": "compute",
    "slowness": "slowness of the device",
    "end_seconds": "end of the last op",
    "host_seconds": "waiting for the host",
    "loading_seconds": "loading data",
}


OF_AXES = {
    "exposed": "exposed communication",
    "peers": "waiting for the last member",
    "transfer": "collectives from the last arrival on",
}


def label_of(name: str) -> str:
    """Say what a figure of ranks is; one of an axis is named `exposed_z_seconds`."""
    kind, _, axis = name.removesuffix("_seconds").partition("_")
    return LABELS.get(name) or (f"{OF_AXES[kind]}, {axis}" if kind in OF_AXES and axis else name)


def is_figure(name: str) -> bool:
    """Tell whether a column is a figure of ranks that is drawn."""
    return name in LABELS or name.removesuffix("_seconds").partition("_")[0] in OF_AXES


def _place(name: str) -> tuple[int, str]:
    known = list(LABELS)
    return (known.index(name), "") if name in LABELS else (len(known), name)


@dataclass(frozen=True)
class RankTable:
    """Figures of ranks, seconds of one step; arrays (ranks of the job,), NaN where a rank was not recorded."""

    grid: Axes
    figures: Mapping[str, Floats]
    recorded: int
    """Ranks that have figures, those included for which another of their class stands."""
    stands: Mapping[int, int] = field(default_factory=dict)
    """Rank with events that stands for a rank, where its figures come from events."""

    @property
    def names(self) -> list[str]:
        """Figures that are not the same for all ranks, the others last."""
        spread = {name: float(np.nanmax(v) - np.nanmin(v)) for name, v in self.figures.items()}
        return sorted(self.figures, key=lambda name: (spread[name] <= 0.0, _place(name)))


def rank_table_of(catalog: Catalog, entry: Entry) -> RankTable:
    """Read what a run says of every rank, or work it out from its events."""

    def made() -> RankTable:
        grid = grid_of(entry)
        if entry.kind == "watch":
            return _from_watch(entry, grid)
        path = catalog.file(entry, RANKS)
        if path.is_file():
            return _read(entry, grid, path.as_posix())
        return _from_events(catalog, entry, grid)

    return catalog.kept(entry, "ranks", made)


def _read(entry: Entry, grid: Axes, path: str) -> RankTable:
    try:
        rows = pq.read_metadata(path).num_rows
        if rows != grid.ranks or rows > MAX_RANKS:
            raise fail(f"{entry.label}/{RANKS}", f"has {rows} rows, but the job has {grid.ranks} ranks")
        table = pq.read_table(path)
        rank = table.column("rank").to_numpy()
        figures = {}
        for name in table.column_names:
            if is_figure(name):
                values = np.full(grid.ranks, np.nan)
                values[rank] = table.column(name).to_numpy().astype(np.float64)
                figures[name] = values
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise fail(f"{entry.label}/{RANKS}", f"cannot be read: {str(error).splitlines()[0]}") from None
    return RankTable(grid, figures, grid.ranks)


def _from_watch(entry: Entry, grid: Axes) -> RankTable:
    """Read what a watched run wrote last."""
    said, figures = entry.head.get("figures"), {}
    for name, values in said.items() if isinstance(said, dict) else ():
        if not is_figure(str(name)):
            continue
        numbers = isinstance(values, list) and all(isinstance(v, int | float) for v in values)
        if not numbers or len(values) != grid.ranks:
            raise fail(f"{entry.label}: figures.{name}", f"expected {grid.ranks} numbers")
        figures[name] = np.array(values, dtype=np.float64)
    if not figures:
        raise fail(f"{entry.label}: figures", "has none that is known")
    return RankTable(grid, figures, grid.ranks)


def _from_events(catalog: Catalog, entry: Entry, grid: Axes) -> RankTable:
    """Add up events rank by rank, the mean over steps; a folded rank has the figures of that which stands for it."""
    events = events_of(catalog, entry)
    steps = max(len(events.steps), 1)
    if len(events) and events.ranks[-1] >= grid.ranks:
        raise fail("rank", f"the run has events of a rank that a job of {grid.ranks} ranks does not have")
    stands, source = stand_ins(catalog, entry, events), np.full(grid.ranks, -1)
    source[list(stands)] = list(stands.values())
    figures: dict[str, Floats] = {}

    def add(name: str, at: np.ndarray[tuple[int], np.dtype[np.bool_]], seconds: Floats) -> None:
        total = np.bincount(events.rank[at], weights=seconds, minlength=grid.ranks) / steps
        figures[name] = np.where(source >= 0, total[source], np.nan)

    compute = events.kind.are("compute")
    add("compute_seconds", compute, (events.end_ns - events.start_ns)[compute] / 1e9)
    rows, still = np.flatnonzero(events.kind.are("collective")), np.zeros(len(events))
    still[rows] = held(events, rows, queues(events, rows)) / 1e9
    for axis in grid.axes:
        chosen = events.kind.are("collective") & events.axis.are(axis)
        waits = events.kind.are("wait") & events.axis.are(axis)
        if chosen.any():
            took = (events.end_ns - events.start_ns)[chosen] / 1e9
            add(f"transfer_{axis}_seconds", chosen, took)
            add(f"exposed_{axis}_seconds", waits, (events.end_ns - events.start_ns)[waits] / 1e9)
            add(f"peers_{axis}_seconds", chosen, still[chosen])
    return RankTable(grid, figures, len(stands), stands)
