"""Whether an event table is as a run is written: proven piece by piece, each small enough to stay in a core's caches.

Most tables are, and then nothing else need be looked at; what is wrong with the others `twin.trace.table` finds out. A
check of three million events as whole columns would touch half a gigabyte besides them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ROWS = 1 << 16
"""Of a piece."""
WORDS = ("kind", "stream", "op", "axis")
Ints = NDArray[np.integer[Any]]


def is_orderly(table: pa.Table, kinds: tuple[str, ...], compute_stream: str, latest: int) -> bool:
    """Tell whether events ascend by rank and op, each stream's by time, and nothing else is wrong with them.

    `table` has all columns of the schema. `kinds` are the known ones, `latest` the last nanosecond that a run may
    have. False says nothing: what is wrong, or whether anything is, has to be looked for.
    """
    if not all(pa.types.is_dictionary(table.schema.field(name).type) for name in WORDS):
        return False
    whole = table.select(_columns(table)).unify_dictionaries()
    if not len(whole):
        return True
    if any(whole.column(name).null_count for name in whole.column_names if name != "axis"):
        return False
    words = {name: whole.column(name).chunk(0).dictionary.to_pylist() for name in WORDS if name != "axis"}
    if any(len(set(of)) < len(of) for of in words.values()) or not set(words["kind"]) <= set(kinds):
        return False
    reader = _Reader(words["kind"], [word == compute_stream for word in words["stream"]], latest)
    return all(reader.goes_on(piece) for piece in whole.to_batches(max_chunksize=ROWS))


def _columns(table: pa.Table) -> list[str]:
    numbers = ("rank", "step", "bytes", "flops", "start_ns", "end_ns", "arrival_ns")
    return [name for name in table.column_names if name in (*WORDS, *numbers)]


class _Reader:
    """Reads pieces in turn, and knows where the last one ended."""

    def __init__(self, kinds: Sequence[str], computes: Sequence[bool], latest: int) -> None:
        self._compute = np.array([word == "compute" for word in kinds])
        self._collective = np.array([word == "collective" for word in kinds])
        self._on_device = np.array(computes)
        """Of each word of the stream, whether it is the compute stream."""
        self._latest = latest
        self._last: tuple[int, int] | None = None
        """Rank and op of the last event."""
        self._ended: dict[int, tuple[int, int, int]] = {}
        """Rank, begin and end of the last event of each stream."""

    def goes_on(self, piece: pa.RecordBatch) -> bool:
        """Tell whether a piece follows the one before, and nothing is wrong with it."""
        columns = {name: piece.column(name) for name in piece.schema.names}
        codes = {name: columns[name].indices.to_numpy() for name in WORDS if name != "axis"}
        numbers = {name: column.to_numpy() for name, column in columns.items() if name not in WORDS}
        return (
            self._words_agree(codes["kind"], codes["stream"], columns["axis"])
            and self._in_bounds(numbers)
            and self._ascend(numbers["rank"], codes["op"])
            and self._follow(codes["stream"], numbers)
        )

    def _words_agree(self, kind: Ints, stream: Ints, axis: pa.Array) -> bool:
        """Computes and waits are on the compute stream, all else is not; all but computes have an axis."""
        if (self._on_device[stream] == self._collective[kind]).any():
            return False
        return not (axis.is_null().to_numpy(zero_copy_only=False) & ~self._compute[kind]).any()

    def _in_bounds(self, of: Mapping[str, Any]) -> bool:
        start, end, arrival = of["start_ns"], of["end_ns"], of["arrival_ns"]
        sizes = all(bool((np.isfinite(of[name]) & (of[name] >= 0)).all()) for name in ("bytes", "flops"))
        signs = of["rank"].min() >= 0 and of["step"].min() >= 0
        times = arrival.min() >= 0 and end.max() <= self._latest
        return bool(sizes and signs and times and (arrival <= start).all() and (start <= end).all())

    def _ascend(self, rank: Ints, op: Ints) -> bool:
        """Tell whether ranks ascend, and ops of each: none is there twice."""
        first = (int(rank[0]), int(op[0]))
        if self._last is not None and first <= self._last:
            return False
        self._last = (int(rank[-1]), int(op[-1]))
        return bool(((rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (op[1:] > op[:-1]))).all())

    def _follow(self, stream: Ints, of: Mapping[str, Any]) -> bool:
        """Tell whether each stream's events of a rank begin when the one before has ended."""
        for code in np.flatnonzero(np.bincount(stream)).tolist():
            at = np.flatnonzero(stream == code)
            rank, begin, end = of["rank"][at], of["start_ns"][at], of["end_ns"][at]
            of_rank, began, ended = self._ended.get(code, (-1, 0, 0))
            if rank[0] == of_rank and (begin[0] < began or begin[0] < ended):
                return False
            same = rank[1:] == rank[:-1]
            if (same & ((begin[1:] < begin[:-1]) | (begin[1:] < end[:-1]))).any():
                return False
            self._ended[code] = (int(rank[-1]), int(begin[-1]), int(end[-1]))
        return True
