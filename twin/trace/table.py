"""The event table: one row per op that ran on one rank.

Times are integer nanoseconds from the start of the run. `arrival_ns` is when the rank was
ready for a collective, `start_ns` when its last member was; elsewhere they are equal.
A `wait` is the time a rank's compute stream stood still for a collective.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

EventKind = Literal["compute", "collective", "wait"]

_WORD = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("stream", _WORD, nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("kind", _WORD, nullable=False),
        pa.field("name", _WORD, nullable=False),
        pa.field("phase", _WORD, nullable=False),
        pa.field("layer", pa.int32()),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("micro", pa.int32()),
        pa.field("axis", _WORD),
        pa.field("group", pa.int32()),
        pa.field("bytes", pa.float64(), nullable=False),
        pa.field("flops", pa.float64(), nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64(), nullable=False),
        pa.field("arrival_ns", pa.int64(), nullable=False),
    ]
)


def check_table(table: pa.Table) -> list[str]:
    """Return what is wrong with an event table: columns, durations, overlap within a stream."""
    problems = []
    for field in SCHEMA:
        if field.name not in table.column_names:
            problems.append(f"column {field.name} is missing")
        elif not _compatible(table.schema.field(field.name).type, field.type):
            found = table.schema.field(field.name).type
            problems.append(f"column {field.name} is {found}, expected {field.type}")
        elif not field.nullable and (missing := table.column(field.name).null_count):
            problems.append(f"column {field.name} has {missing} missing values")
    if problems:
        return problems
    start, end = (table.column(c).to_numpy() for c in ("start_ns", "end_ns"))
    if negative := int(np.sum(end < start)):
        problems.append(f"{negative} events end before they start")
    if early := int(np.sum(start < table.column("arrival_ns").to_numpy())):
        problems.append(f"{early} events start before their rank arrives")
    if doubled := table.num_rows - table.group_by(["rank", "op"]).aggregate([]).num_rows:
        problems.append(f"{doubled} events have the rank and op of another one")
    stream = table.column("stream").combine_chunks().dictionary_encode()
    code = (
        stream.indices.to_numpy() if isinstance(stream, pa.DictionaryArray) else stream.to_numpy()
    )
    order = np.lexsort((end, start, code, table.column("rank").to_numpy()))
    rank, code = table.column("rank").to_numpy()[order], code[order]
    same = (rank[1:] == rank[:-1]) & (code[1:] == code[:-1])
    if overlaps := int(np.sum(same & (start[order][1:] < end[order][:-1]))):
        problems.append(f"{overlaps} events overlap another one of their stream")
    return problems


def _compatible(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_dictionary(expected):
        expected = expected.value_type
    text = pa.types.is_string(expected) and (
        pa.types.is_string(found) or pa.types.is_large_string(found)
    )
    whole = pa.types.is_integer(expected) and pa.types.is_integer(found)
    return bool(text or whole or found == expected)
