"""A run's events as numpy columns, which is what figures are made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dashboards.catalog import Catalog, Entry
from twin.description.grid import Mesh
from twin.description.problems import DescriptionError, fail
from twin.strategies import known_axes
from twin.trace.palette import BEYOND
from twin.trace.store import EVENTS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
OTHER = "other"
COLOURED_AXES = (*known_axes()[::-1], *BEYOND)
WAIT, GAP = "wait", "gap"
CATEGORIES = ("compute", *COLOURED_AXES, OTHER, WAIT, GAP)
"""What an event is: compute, a collective by its axis (or a copy to or from the host, an update there, or a drive's
work), one of another axis, a wait of the compute stream; and what lies
between events of the compute stream, when a rank stands still for its host."""
MAX_AXES, MAX_SIZE = 16, 1 << 40
"""Of a manifest that may come from a stranger: products of sizes must stay small."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

MAX_STEPS = 2_000
"""Of a run that are offered to choose among."""
MAX_READ_BYTES = 16 << 20
"""Of a run that is read for its step alone."""


@dataclass(frozen=True)
class Words:
    """A column of words: codes, and what they stand for."""

    code: NDArray[np.int32]
    words: tuple[str, ...]

    def __getitem__(self, row: int) -> str:
        """Return one row's word; empty if it has none."""
        code = int(self.code[row])
        return self.words[code] if code >= 0 else ""

    def are(self, word: str) -> NDArray[np.bool_]:
        """Say of every row whether it has this word."""
        if word not in self.words:
            return np.zeros(len(self.code), dtype=bool)
        return np.asarray(self.code == self.words.index(word))


@dataclass(frozen=True)
class Events:
    """All events of a run, sorted as in the file: by rank, then program order. Times in nanoseconds."""

    rank: NDArray[np.int32]
    step: NDArray[np.int32]
    layer: NDArray[np.int32]
    """-1 where an op belongs to no layer."""
    group: NDArray[np.int32]
    """Number of the group within its axis; -1 for compute."""
    start_ns: Ints
    end_ns: Ints
    arrival_ns: Ints
    bytes: Floats
    flops: Floats
    category: NDArray[np.int8]
    """Index into CATEGORIES."""
    kind: Words
    stream: Words
    op: Words
    name: Words
    phase: Words
    axis: Words
    from_zero: bool = False
    """The only step begins at zero, as a simulated one does: with what the host does before the first op."""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.rank)

    @cached_property
    def ranks(self) -> Ints:
        """Ranks with events, ascending."""
        return np.unique(self.rank).astype(np.int64)

    @cached_property
    def steps(self) -> list[int]:
        """Steps with events."""
        return [int(step) for step in np.unique(self.step)]

    def span_ns(self, at: NDArray[np.integer[Any]]) -> tuple[int, int]:
        """Return when the step began whose events lie at these rows, and when it ended."""
        begin = 0 if self.from_zero else int(np.minimum(self.arrival_ns[at], self.start_ns[at]).min())
        return begin, int(self.end_ns[at].max())


def events_of(catalog: Catalog, entry: Entry) -> Events:
    """Read a run's events, or take those read before. Raises DescriptionError."""
    if entry.kind not in ("predicted", "measured"):
        raise fail(entry.label, f"is a {entry.kind}, not a run; choose a run on the page Runs")
    return catalog.kept(entry, "events", lambda: _events(catalog, entry))


def _events(catalog: Catalog, entry: Entry) -> Events:
    table = catalog.trace(entry).events
    return columns(table, predicted=entry.kind == "predicted" and len(pc.unique(table.column("step"))) == 1)


def columns(table: pa.Table, *, predicted: bool = False) -> Events:
    """Turn an event table into columns; that of one simulated step begins at zero."""

    def numbers(name: str, missing: int = -1) -> Any:
        column = table.column(name)
        return (column.fill_null(missing) if column.null_count else column).to_numpy()

    kind, axis = words(table.column("kind")), words(table.column("axis"))
    category = np.zeros(table.num_rows, dtype=np.int8)
    category[kind.are("collective")] = CATEGORIES.index(OTHER)
    for number, name in enumerate(COLOURED_AXES, start=1):
        category[axis.are(name)] = number
    category[kind.are(WAIT)] = CATEGORIES.index(WAIT)
    category[kind.are("compute")] = 0
    return Events(
        rank=numbers("rank"),
        step=numbers("step"),
        layer=numbers("layer"),
        group=numbers("group"),
        start_ns=numbers("start_ns"),
        end_ns=numbers("end_ns"),
        arrival_ns=numbers("arrival_ns"),
        bytes=numbers("bytes"),
        flops=numbers("flops"),
        category=category,
        kind=kind,
        stream=words(table.column("stream")),
        op=words(table.column("op")),
        name=words(table.column("name")),
        phase=words(table.column("phase")),
        axis=axis,
        from_zero=predicted,
    )


def words(column: pa.ChunkedArray) -> Words:
    """Turn a column of words into codes."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], column.type)
    indices = whole.indices.fill_null(-1) if whole.null_count else whole.indices  # of none missing no copy
    codes = indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    return Words(codes, tuple(str(word) for word in whole.dictionary.to_pylist()))


def grid_of(entry: Entry) -> Mesh:
    """Read the grid of a run's job. Raises DescriptionError if there is none."""
    job = entry.head.get("job")
    grid = job.get("grid") if isinstance(job, Mapping) else None
    mesh = mesh_of(grid)
    if mesh is None:
        raise fail(entry.label, "its job names no grid")
    return mesh


def mesh_of(grid: object) -> Mesh | None:
    """Read the sizes of axes by name; None if they are none."""
    if not isinstance(grid, Mapping) or not 0 < len(grid) <= MAX_AXES:
        return None
    named = all(isinstance(axis, str) and NAME.fullmatch(axis) for axis in grid)
    sized = all(type(size) is int and 0 < size <= MAX_SIZE for size in grid.values())
    return Mesh(tuple(grid), tuple(grid.values())) if named and sized else None


def steps_of(catalog: Catalog, entry: Entry) -> list[int]:
    """Return the steps that a run's manifest says it has, else those of its events. Raises DescriptionError."""
    said = entry.head.get("steps")
    if isinstance(said, list) and all(type(n) is int for n in said):
        return [int(n) for n in said[:MAX_STEPS]]
    return events_of(catalog, entry).steps[:MAX_STEPS]


def step_seconds(catalog: Catalog, entry: Entry) -> float | None:
    """Return the length of a run's step: as its manifest says, or the median of those recorded.

    None for what is no run, is damaged, or is too large to be read for this alone.
    """
    figures = entry.head.get("figures")
    said = figures.get("step_seconds") if isinstance(figures, Mapping) else None
    if isinstance(said, int | float):
        return float(said)
    if entry.kind not in ("predicted", "measured") or (entry.path / EVENTS).stat().st_size > MAX_READ_BYTES:
        return None

    def median() -> float | None:
        try:
            events = _events(catalog, entry)
        except DescriptionError:
            return None
        spans = (events.span_ns(np.flatnonzero(events.step == step)) for step in events.steps)
        lengths = sorted(end - begin for begin, end in spans)
        return lengths[(len(lengths) - 1) // 2] / 1e9 if lengths else None

    return catalog.noted(entry, "step", median)
