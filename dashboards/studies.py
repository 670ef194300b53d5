"""A study, read strictly from what `fourfold study` wrote."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from dashboards.catalog import Catalog, Entry
from twin.description.problems import DescriptionError, fail, from_pydantic
from twin.studies.derived import Effect, Row, effects
from twin.studies.description import Study
from twin.studies.objective import feasible
from twin.studies.table import GRID, Column, columns_of, target_columns

POINTS = "points.parquet"
MAX_ROWS, MAX_COLUMNS, MAX_BYTES, MAX_WORDS = 20_000, 400, 64 << 20, 400
"""Of a study that may come from a stranger: points, columns, the file, and letters of a cell."""
PLAIN = (str, int, float, bool)


@dataclass(frozen=True)
class Opened:
    """A finished study: what was asked, its points, and what follows from them."""

    study: Study
    title: str
    rows: tuple[Row, ...]
    effects: tuple[Effect, ...]
    """Of a sensitivity study, the largest first."""

    @property
    def done(self) -> list[Row]:
        """Points that can run; others that were computed do not fit into memory."""
        return [row for row in self.rows if "step_seconds" in row and feasible(row)]

    @property
    def columns(self) -> list[Column]:
        """Columns of the table of points."""
        return [*columns_of(self.study, self.rows), *target_columns(self.study, self.rows)]


def study_of(catalog: Catalog, entry: Entry) -> Opened:
    """Read a study, or take the one read before. Raises DescriptionError."""
    if entry.kind != "study":
        raise fail(entry.label, f"is a {entry.kind}, not a study; choose a study on the page Runs")
    path = catalog.file(entry, POINTS)
    if not path.is_file():
        raise fail(entry.label, "is not finished; the command that began it goes on where it stopped")
    stat = path.stat()
    return catalog.kept(entry, f"study {stat.st_mtime_ns}", lambda: _read(entry, path.as_posix(), stat.st_size))


def _read(entry: Entry, path: str, size: int) -> Opened:
    asked = entry.head.get("asked")
    try:
        study = Study.model_validate(asked)
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, Study), entry.label) from None
    label = f"{entry.label}/{POINTS}"
    if size > MAX_BYTES:
        raise fail(label, f"is larger than {MAX_BYTES:,} bytes")
    try:
        head = pq.read_metadata(path)
        if not 0 < head.num_rows <= MAX_ROWS or head.num_columns > MAX_COLUMNS:
            raise fail(
                label,
                f"has {head.num_rows:,} rows and {head.num_columns:,} columns; expected 1 to "
                f"{MAX_ROWS:,} and at most {MAX_COLUMNS}",
            )
        found = pq.read_table(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, DescriptionError):
            raise
        raise fail(label, f"cannot be read: {str(error).splitlines()[0][:200]}") from None
    rows = tuple(_row(label, raw) for raw in found.to_pylist())
    title = entry.head.get("title")
    opened = Opened(study, title[:200] if isinstance(title, str) and title else entry.label, rows, ())
    if study.study != "sensitivity":
        return opened
    for row in rows[1:]:
        _need(label, row, ("parameter", "side", "value"), str)
    return Opened(study, opened.title, rows, tuple(effects(rows)))


def _row(label: str, raw: dict[str, Any]) -> Row:
    """Return a row's cells that have a value; what figures are made of is checked."""
    row: Row = {}
    for key, value in raw.items():
        if value is None:
            continue
        if not isinstance(value, PLAIN) or (isinstance(value, float) and not math.isfinite(value)):
            raise fail(f"{label}: {key}"[:MAX_WORDS], "holds something else than words and numbers")
        row[key] = value[:MAX_WORDS] if isinstance(value, str) else value
    row.setdefault("reason", "")
    row.setdefault("status", "done" if "step_seconds" in row else "refused")
    _need(label, row, ("reason", "status"), str)
    if not isinstance(row.get("memory_fits", True), bool):
        raise fail(f"{label}: memory_fits", "expected true or false", row["memory_fits"])
    for key, value in row.items():
        numeric = key.endswith(("_seconds", "_p10", "_p50", "_p90", "percent_of_peak", "efficiency", "_joules"))
        if numeric and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise fail(f"{label}: {key}"[:MAX_WORDS], "expected a number", value)
    if "step_seconds" in row:
        if row["step_seconds"] <= 0:
            raise fail(f"{label}: step_seconds", "must be more than 0", row["step_seconds"])
        axes = [key for key in row if key.startswith(GRID)]  # those of size 1 may be left out
        _need(label, row, ("ranks", *axes, "micro_sequences"), int)
        if math.prod(row[axis] for axis in axes) != row["ranks"]:
            raise fail(f"{label}: {GRID}*", "sizes of axes do not make the ranks; write the study again", row["ranks"])
        _need(label, row, ("hardware_percent_of_peak",), float)
    return row


def _need(label: str, row: Row, keys: tuple[str, ...], kind: type) -> None:
    for key in keys:
        if not isinstance(row.get(key), kind):
            raise fail(f"{label}: {key}", "is missing or of a wrong kind; write the study again")
