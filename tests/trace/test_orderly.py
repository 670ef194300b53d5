"""What is proven piece by piece, against the same checks over whole columns; and columns filled batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.description.problems import DescriptionError
from twin.trace import orderly, table
from twin.trace.numbers import Numbers
from twin.trace.store import EVENTS, read_trace, write_trace
from twin.trace.table import SCHEMA, check_table

RANKS, OPS = 3, 4
OF_RANK = (
    *(("compute", "compute", 0, 10), ("collective", "z", 2, 15)),
    *(("wait", "compute", 10, 15), ("compute", "compute", 15, 20)),
)
"""Kind, stream, begin and end."""


def rows() -> list[dict[str, Any]]:
    """Write events of three ranks: an op of compute, a collective beside it, the wait for it, and another op."""
    found = []
    for rank in range(RANKS):
        for number, (kind, stream, start, end) in enumerate(OF_RANK):
            found.append(
                {"rank": rank, "stream": stream, "op": f"op{number}", "kind": kind, "name": "n", "phase": "fwd"}
                | {"layer": None, "step": 0, "micro": None, "axis": None if kind == "compute" else "z", "group": None}
                | {"bytes": 1.0, "flops": 0.0, "start_ns": start, "end_ns": end, "arrival_ns": start}
            )
    return found


def encoded(of: list[dict[str, Any]]) -> pa.Table:
    """Make a table with words as codes, as it is read."""
    whole = pa.Table.from_pylist(of, schema=SCHEMA)
    return whole.set_column(2, "op", whole.column("op").dictionary_encode())


CHANGES: dict[str, list[Any]] = {
    "rank": [0, 1, 2, 5, -1],
    "op": ["op0", "op1", "op2", "op3"],
    "kind": ["compute", "collective", "wait", "nap"],
    "stream": ["compute", "z", "y"],
    "axis": [None, "z"],
    "step": [0, -1],
    "bytes": [0.0, -1.0, float("nan"), float("inf")],
    "flops": [3.0, -1.0],
    "start_ns": [0, 3, 9, 12, 30],
    "end_ns": [0, 11, 14, 18, table.MAX_NANOSECONDS + 1],
    "arrival_ns": [0, -2, 12],
}
CHANGE = st.sampled_from(sorted(CHANGES)).flatmap(
    lambda column: st.tuples(st.just(column), st.sampled_from(CHANGES[column]), st.integers(0, RANKS * OPS - 1))
)


@settings(max_examples=150)
@given(st.lists(CHANGE, max_size=3), st.integers(1, 13), st.booleans())
def test_what_is_wrong_is_found_whichever_way_it_is_looked_for(changes: Any, piece: int, swapped: bool) -> None:
    of = rows()
    for column, value, row in changes:
        of[row][column] = value
    if swapped:
        of[3], of[4] = of[4], of[3]
    events = encoded(of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orderly, "ROWS", piece)
        found = check_table(events)
        patch.setattr(table, "is_orderly", lambda *_: False)
        assert found == check_table(events)


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_a_run_as_it_is_written_is_proven(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(orderly, "ROWS", piece)
    known = ("compute", "collective", "wait")
    assert orderly.is_orderly(encoded(rows()), known, "compute", table.MAX_NANOSECONDS)
    assert not orderly.is_orderly(encoded(rows()[::-1]), known, "compute", table.MAX_NANOSECONDS)
    assert not orderly.is_orderly(encoded(rows()), known, "compute", 19)
    assert orderly.is_orderly(encoded([]), known, "compute", table.MAX_NANOSECONDS)


def test_columns_of_numbers_lie_in_one_piece() -> None:
    batches = pa.table({"a": range(10), "b": [0.5] * 10}).to_batches(max_chunksize=4)
    numbers = Numbers({"a": np.int64, "b": np.float64}, 10)
    for batch in batches:
        numbers.take(batch)
    assert not numbers.problems()
    assert numbers.arrays()["a"].to_pylist() == list(range(10))
    assert numbers.nbytes == 160
    numbers.take(batches[0])
    assert numbers.problems() == ["has 14 rows where its footer says 10"]


def test_numbers_that_are_missing_are_counted(tmp_path: Any) -> None:
    write_trace(tmp_path / "run", {}, encoded(rows()).cast(SCHEMA))
    path, manifest = tmp_path / "run" / EVENTS, tmp_path / "run" / "manifest.json"
    there = pq.read_table(path)
    gaps = pa.array([None, None, *range(len(there) - 2)], pa.int64())
    pq.write_table(there.set_column(there.column_names.index("end_ns"), "end_ns", gaps), path)
    manifest.write_text(manifest.read_text().replace('"sha256"', '"digests"'))
    with pytest.raises(DescriptionError, match="column end_ns has 2 missing values"):
        read_trace(tmp_path / "run")
