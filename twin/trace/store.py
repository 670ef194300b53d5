"""One directory per run: `manifest.json` and `events.parquet`.

Written whole or not at all: everything goes to a temporary directory beside the target, which
is then renamed. Read strictly, for runs come from strangers too: what does not fit the schema is
refused with the reason, no more is unpacked than a run can be, and the manifest carries the digests
of the tables, so that bytes which changed on the way, or tables of another run, are seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twin.description.problems import DescriptionError, fail
from twin.trace.directory import refuse_kept, written_whole
from twin.trace.numbers import Numbers
from twin.trace.table import SCHEMA, check_table

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
RUN = "run of Fourfold"
EVENTS = "events.parquet"
CLASSES = "classes.parquet"
MAX_MANIFEST_BYTES = 16 << 20
MAX_EVENTS = 20_000_000
MAX_TABLE_BYTES = 4 << 30
"""Of an event table in memory."""
BATCH_ROWS = 1 << 18
"""Dictionaries come with every batch anew, so small ones cost much; large ones unpack much at once."""
CLASS_SCHEMA = pa.schema([pa.field("rank", pa.int32()), pa.field("class", pa.int32())])


@dataclass(frozen=True)
class Trace:
    """A run read back."""

    manifest: dict[str, Any]
    events: pa.Table


def refuse_run(directory: Path, *, overwrite: bool) -> None:
    """Refuse a place where no run could be written; raises DescriptionError."""
    refuse_kept(directory.resolve(), MANIFEST, RUN, overwrite=overwrite)


def write_trace(
    directory: Path,
    manifest: Mapping[str, Any],
    events: pa.Table,
    rank_class: pa.Table | None = None,
    texts: Mapping[str, str] | None = None,
    more: Mapping[str, pa.Table] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write a run.

    `rank_class`, for folded runs, says which simulated rank stands for each rank; `texts` are
    further files by name (the resolved job, a timeline page), `more` further tables. An existing
    directory is replaced only if it is a run itself and `overwrite` is set.
    """
    with written_whole(directory, MANIFEST, RUN, overwrite=overwrite) as temporary:
        tables = {EVENTS: events} | ({} if rank_class is None else {CLASSES: rank_class})
        tables |= more or {}
        for name, table in tables.items():
            pq.write_table(table, temporary / name, compression="zstd")
        digests = {name: _digest(temporary / name) for name in tables}
        for name, content in (texts or {}).items():
            (temporary / name).write_text(content, encoding="utf-8")
        whole = {"schema_version": SCHEMA_VERSION, **manifest, "sha256": digests}
        text = json.dumps(whole, indent=1, allow_nan=False)
        (temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_trace(directory: Path) -> Trace:
    """Read and check a run. Words and ops of the table are dictionary-encoded."""
    manifest = read_manifest(directory)
    events = _read_table(directory / EVENTS, SCHEMA, manifest)
    if problems := check_table(events):
        raise fail(str(directory / EVENTS), "; ".join(problems))
    return Trace(manifest, events)


def read_classes(directory: Path, manifest: Mapping[str, Any]) -> dict[int, int] | None:
    """Return the class of each rank of a folded run, None if the run has no such table."""
    path = directory / CLASSES
    if not path.exists():
        return None
    table = _read_table(path, CLASS_SCHEMA, manifest)
    if table.schema.types != CLASS_SCHEMA.types or any(c.null_count for c in table.columns):
        raise fail(str(path), f"expected columns {', '.join(CLASS_SCHEMA.names)} of whole numbers")
    classes = dict(zip(*(table.column(name).to_pylist() for name in CLASS_SCHEMA.names), strict=True))
    if len(classes) < table.num_rows:
        raise fail(str(path), f"{table.num_rows - len(classes)} ranks have two classes")
    return classes


def _read_table(path: Path, schema: pa.Schema, manifest: Mapping[str, Any]) -> pa.Table:
    """Read the columns of a schema, as far as they are there, within the limits of size."""
    if not path.exists():
        raise fail(str(path), "no such file")
    if not path.is_file():  # a pipe or a device would never end
        raise fail(str(path), "is not a regular file")
    digests = manifest.get("sha256", {})  # older runs have none
    if digests and (not isinstance(digests, dict) or digests.get(path.name) != _digest(path)):
        raise fail(str(path), f"is damaged, or of another run: it is not what {MANIFEST} was written with")
    try:
        there = pq.read_schema(path)
        wanted = [name for name in schema.names if name in there.names]
        words = [n for n in wanted if _is_text(schema.field(n)) and _is_text(there.field(n))]
        with pq.ParquetFile(path, read_dictionary=words) as file:
            table = _limited(path, file, wanted, schema)
        table.validate(full=True)
        return _typed(table, schema)
    except DescriptionError:
        raise
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or ["empty"])[0]
        raise fail(str(path), f"not a Parquet file of a run, or damaged: {reason}") from None


def _is_text(field: pa.Field) -> bool:
    return bool(pa.types.is_dictionary(field.type) or pa.types.is_string(field.type))


def _limited(path: Path, file: pq.ParquetFile, columns: list[str], schema: pa.Schema) -> pa.Table:
    metadata = file.metadata
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    said = sum(g.column(c).total_uncompressed_size for g in groups for c in range(g.num_columns))
    if metadata.num_rows > MAX_EVENTS or said > MAX_TABLE_BYTES:
        raise fail(
            str(path),
            f"has {metadata.num_rows:,} rows and {said:,} bytes; a run has at most "
            f"{MAX_EVENTS:,} and {MAX_TABLE_BYTES:,}. Trace fewer steps",
        )
    types = {name: file.schema_arrow.field(name).type for name in columns}
    plain = [name for name in columns if not schema.field(name).nullable and _is_number(types[name])]
    numbers = Numbers({name: types[name].to_pandas_dtype() for name in plain}, metadata.num_rows)
    batches: list[pa.RecordBatch] = []
    size: dict[int, int] = {}  # by address, for batches share dictionaries
    for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
        numbers.take(batch)
        rest = batch.select([name for name in columns if name not in plain])
        batches.append(rest)
        parts = [*rest.columns, *(c.dictionary for c in rest.columns if pa.types.is_dictionary(c.type))]
        size |= {b.address: b.size for part in parts for b in part.buffers() if b is not None}
        if sum(size.values()) + numbers.nbytes > MAX_TABLE_BYTES:  # what the file says of itself need not be so
            raise fail(str(path), f"unpacks to more than {MAX_TABLE_BYTES:,} bytes")
    if problems := numbers.problems():
        raise fail(str(path), "; ".join(problems))
    empty = pa.schema([file.schema_arrow.field(name) for name in columns if name not in plain]).empty_table()
    table = (pa.Table.from_batches(batches) if batches else empty).unify_dictionaries()
    found = {**dict(zip(table.column_names, table.columns, strict=True)), **numbers.arrays()}
    return pa.table({name: found[name] for name in columns})


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Make whole numbers as wide as the schema has them; what does not fit is an error."""
    for number, field in enumerate(table.schema):
        wanted = schema.field(field.name).type
        if pa.types.is_integer(wanted) and pa.types.is_integer(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(wanted))
    return table


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read a run's manifest."""
    path = directory / MANIFEST
    if not path.is_file():
        if not directory.is_dir():
            raise fail(str(directory), "is not a directory" if directory.exists() else "no such directory")
        remedy = "give what `simulate --out` or `train --trace` wrote"
        raise fail(str(directory), f"is not a run of Fourfold: {MANIFEST} is missing; {remedy}")
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise fail(str(path), "too large for a manifest")
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise fail(str(path), f"cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        version = manifest.get("schema_version") if isinstance(manifest, dict) else None
        raise fail(str(path), f"schema_version is {version!r}; this version reads {SCHEMA_VERSION}")
    return manifest
