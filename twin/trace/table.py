"""The event table: one row per op that ran on one rank.

Times are integer nanoseconds from the start of the run. `arrival_ns` is when the rank was
ready for a collective, `start_ns` when its last member was; elsewhere they are equal.
A `wait` is the time a rank's compute stream stood still for a collective.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from twin.trace.orderly import is_orderly

EventKind = Literal["compute", "collective", "wait"]

COMPUTE_STREAM = "compute"
MAX_NANOSECONDS = 1000 * 24 * 3600 * 10**9
"""Times beyond a thousand days are no run's."""

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
    """Return what is wrong with an event table: columns, words, sizes, times, overlap within a stream."""
    if problems := _check_columns(table):
        return problems
    if is_orderly(table, get_args(EventKind), COMPUTE_STREAM, MAX_NANOSECONDS):
        return []
    return [*_check_words(table), *_check_numbers(table), *_check_times(table)]


def _check_columns(table: pa.Table) -> list[str]:
    problems = []
    for field in SCHEMA:
        if (count := table.column_names.count(field.name)) != 1:
            problems.append(f"column {field.name} is {'there twice' if count else 'missing'}")
        elif not _compatible(table.schema.field(field.name).type, field.type):
            found = table.schema.field(field.name).type
            problems.append(f"column {field.name} is {found}, expected {field.type}")
        elif not field.nullable and (missing := table.column(field.name).null_count):
            problems.append(f"column {field.name} has {missing} missing values")
    return problems


def _check_words(table: pa.Table) -> list[str]:
    # by the codes of words: to compare the words of three million events takes a fifth of a second
    (kind, kinds), (stream, streams) = codes(table.column("kind")), codes(table.column("stream"))
    problems = []
    if strange := _count(kind, [word not in get_args(EventKind) for word in kinds]):
        problems.append(f"{strange} events are of an unknown kind")
    on_device = _are(stream, [word == COMPUTE_STREAM for word in streams])
    collective = _are(kind, [word == "collective" for word in kinds])
    if lost := int(np.sum(on_device == collective)):
        problems.append(
            f"{lost} events are on the wrong stream: the compute stream has computes and waits, "
            "all others have collectives"
        )
    without = table.column("axis").is_null().to_numpy()
    if nowhere := int(np.sum(without & ~_are(kind, [word == "compute" for word in kinds]))):
        problems.append(f"{nowhere} collectives and waits are over no axis of the grid")
    return problems


def _check_numbers(table: pa.Table) -> list[str]:
    problems = [
        f"{below} events have a negative {name}"
        for name in ("rank", "step")
        if (below := int(np.sum(table.column(name).to_numpy() < 0)))
    ]
    for name in ("bytes", "flops"):
        values = table.column(name).to_numpy()
        if strange := int(np.sum(~(np.isfinite(values) & (values >= 0)))):
            problems.append(f"{strange} events have {name} that are negative, NaN or infinite")
    return problems


def _check_times(table: pa.Table) -> list[str]:
    problems = []
    start, end, arrival = (table.column(c).to_numpy() for c in ("start_ns", "end_ns", "arrival_ns"))
    if negative := int(np.sum(end < start)):
        problems.append(f"{negative} events end before they start")
    if early := int(np.sum(start < arrival)):
        problems.append(f"{early} events start before their rank arrives")
    far = (np.minimum(start, arrival) < 0) | (np.maximum(start, end) > MAX_NANOSECONDS)
    if strange := int(np.sum(far)):
        problems.append(f"{strange} events have times before the run or a thousand days after its start")
    rank = table.column("rank").to_numpy().astype(np.int64)
    op, ops = codes(table.column("op"))
    pairs = rank * (len(ops) + 1) + op
    if not np.all(pairs[1:] > pairs[:-1]):  # as a run is written they ascend, and none is double
        pairs.sort()
        if doubled := int(np.sum(pairs[1:] == pairs[:-1])):
            problems.append(f"{doubled} events have the rank and op of another one")
    if overlaps := _overlaps(rank, *codes(table.column("stream")), start, end):
        problems.append(f"{overlaps} events overlap another one of their stream")
    return problems


def _overlaps(rank: np.ndarray, stream: np.ndarray, streams: list[str], start: np.ndarray, end: np.ndarray) -> int:
    """Count events that begin before the one before them on their stream has ended."""
    found = 0
    for code in range(-1, len(streams)):
        at = np.flatnonzero(stream == code)
        of, begin, stop = rank[at], start[at], end[at]
        # as a run is written, streams are in order; sorting three million events takes a second
        if not np.all((of[1:] > of[:-1]) | ((of[1:] == of[:-1]) & (begin[1:] >= begin[:-1]))):
            order = np.lexsort((stop, begin, of))
            of, begin, stop = of[order], begin[order], stop[order]
        found += int(np.sum((of[1:] == of[:-1]) & (begin[1:] < stop[:-1])))
    return found


def codes(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return a column of words as numbers (int64, -1 where there is none) and the words they stand for."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    one = column.unify_dictionaries().combine_chunks()
    if isinstance(one, pa.ChunkedArray):  # of no chunks, or too long for one
        one = pa.concat_arrays(one.chunks) if one.num_chunks else pa.array([], column.type)
    first: dict[str, int] = {}
    # a foreign file may list a word twice
    known = [first.setdefault(word, len(first)) for word in one.dictionary.to_pylist()]
    indices = one.indices.cast(pa.int64()).fill_null(-1).to_numpy()
    if known == list(range(len(known))):  # as Arrow writes them
        return indices, list(first)
    return np.array([*known, -1], dtype=np.int64)[indices], list(first)


def _are(code: np.ndarray, of_word: list[bool]) -> np.ndarray:
    """Say of each event what is said of its word; False where it has none."""
    said: np.ndarray = np.array([*of_word, False])[code]
    return said


def _count(code: np.ndarray, of_word: list[bool]) -> int:
    return int(np.sum(_are(code, of_word)))


def _compatible(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_dictionary(expected):
        expected = expected.value_type
    text = pa.types.is_string(expected) and (pa.types.is_string(found) or pa.types.is_large_string(found))
    whole = pa.types.is_integer(expected) and pa.types.is_integer(found)
    return bool(text or whole or found == expected)
