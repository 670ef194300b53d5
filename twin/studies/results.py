"""The results of a study as files: the tables for programs and people, and the page."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twin.description.files import write_whole
from twin.strategies import load_job
from twin.studies import factorial
from twin.studies.derived import Effect, Row, effects, rows_of
from twin.studies.description import canonical
from twin.studies.directory import TABLES
from twin.studies.figures import pictures
from twin.studies.importance import Importance, importance
from twin.studies.objective import best_first, feasible, without
from twin.studies.page import page
from twin.studies.run import StudyRun
from twin.studies.table import BEST, Table, columns_of, target_columns

MAX_BEST = 20
"""Points in the table of the best ones."""


@dataclass(frozen=True)
class Results:
    """A finished study, made ready to be shown."""

    run: StudyRun
    rows: tuple[Row, ...]
    effects: tuple[Effect, ...]
    """Of a sensitivity study, the largest first."""
    importance: Importance | None
    """Of a sweep over every combination of several factors."""
    tables: tuple[Table, ...]
    """The tables of points."""
    facts: tuple[tuple[str, str], ...]
    caveats: dict[str, str]
    """What to know before trusting predictions, by machine."""


def results_of(run: StudyRun) -> Results:
    """Work out what follows from the points of a study."""
    study = run.loaded.study
    rows = rows_of(run)
    found = effects(rows) if study.study == "sensitivity" else []
    first = tuple(columns_of(study, rows))
    factors = importance(study, rows)
    tables = [Table("Points", first, tuple(rows))]
    if factors is not None and len(rows) > MAX_BEST:
        shown = tuple(column for column in first if column.key != "reason")
        tables.insert(0, Table(BEST, shown, tuple(best_first(rows, study.objective)[:MAX_BEST])))
    if further := target_columns(study, rows):
        named = tuple(column for column in first if column.key in {"point", *study.varied})
        tables.append(Table("To the target", named + tuple(further), tuple(rows)))
    return Results(run, tuple(rows), tuple(found), factors, tuple(tables), tuple(facts_of(run, rows)), caveats_of(run))


def caveats_of(run: StudyRun) -> dict[str, str]:
    """Caveats of all machines of a study, modified ones included; one that several share, once."""
    jobs: dict[str, dict[str, Any]] = {}
    for answer in run.answers.values():
        if answer["job"]:
            machine = answer["job"]["machine"]
            if isinstance(machine, dict):  # of what is modified, only this changes the caveat
                machine = {key: machine.get(key) for key in ("extends", "name", "caveat")}
            jobs.setdefault(canonical(machine), answer["job"])
    found = [load_job(raw).machine for raw in jobs.values()]
    names = {machine.caveats: machine.name for machine in sorted(found, key=lambda m: -len(m.name))}
    return {name: caveat for caveat, name in sorted(names.items(), key=lambda i: i[1]) if caveat}


def write_results(results: Results) -> None:
    """Write `points.parquet`, `table.csv` and `study.html` of a finished study."""
    run, rows = results.run, results.rows
    drawn = pictures(run.loaded.study, rows, results.effects)
    if results.importance is not None:
        drawn = [*factorial.pictures(results.importance), *drawn]
    contents: dict[str, str | bytes] = {
        "points.parquet": _parquet(rows),
        "table.csv": _csv(rows),
        "study.html": page(run.loaded.title, [*results.facts, *results.caveats.items()], drawn, results.tables),
    }
    for name in TABLES:
        write_whole(run.directory / name, contents[name])


def facts_of(run: StudyRun, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What a reader should know before the figures: (what, value)."""
    study = run.loaded.study
    done = [row for row in rows if row["status"] == "done"]
    able = [row for row in done if feasible(row)]
    facts = [("kind", study.study.replace("_", " ")), ("points", f"{len(able):,} of {len(rows):,} possible")]
    if len(able) < len(done):
        facts.append(("computed all the same", f"{len(done) - len(able):,} more that do not fit into memory"))
    if machines := list(dict.fromkeys(str(row["machine"]) for row in done)):
        facts.append(("machine", ", ".join(machines[:6]) + (", …" if len(machines) > 6 else "")))
    errors = [abs(row["error"]) for row in rows if "error" in row]
    if errors:
        facts.append(
            (
                "error against measured",
                f"median {statistics.median(errors):.1%} over {len(errors)} point{'s' if len(errors) > 1 else ''}",
            )
        )
    if study.study == "sweep" and (unknown := without(rows, study.objective)):
        some = f"{len(unknown):,} point{'s' if len(unknown) > 1 else ''}"
        whose = ", ".join(dict.fromkeys(str(row["machine"]) for row in unknown))
        facts.append((f"no {study.objective}", f"{some}, whose devices do not say what they draw ({whose})"))
    if study.seeds > 1:
        facts.append(("seeds", f"{study.seeds} draws a point; figures are those of the draw of median step"))
    if study.target is not None:
        facts.append(("target", study.target.words))
    return facts


def _keys(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, _keys(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _parquet(rows: Sequence[Row]) -> bytes:
    columns = {key: _column([row.get(key) for row in rows]) for key in _keys(rows)}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def _column(values: list[Any]) -> pa.Array:
    """Return a column of one type; what is mixed becomes text."""
    known = {type(value) for value in values if value is not None}
    if known == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    if len(known) > 1:
        return pa.array([None if value is None else str(value) for value in values])
    return pa.array(values)
