"""Runs of strangers: what is damaged, too large or of the wrong kind is refused before it does harm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.description.problems import DescriptionError
from twin.trace import store
from twin.trace.store import read_classes, read_manifest, read_trace, write_trace
from twin.trace.table import SCHEMA, check_table, codes

ROW = {
    "rank": 0,
    "stream": "compute",
    "op": "step0/a",
    "kind": "compute",
    "name": "a",
    "phase": "fwd",
    "layer": None,
    "step": 0,
    "micro": None,
    "axis": None,
    "group": None,
    "bytes": 1.0,
    "flops": 1.0,
    "start_ns": 5,
    "end_ns": 9,
    "arrival_ns": 5,
}


def events(**changes: object) -> pa.Table:
    return pa.Table.from_pylist([{**ROW, **changes}], SCHEMA)


@pytest.fixture
def run(tmp_path) -> Path:
    classes = pa.table({"rank": pa.array([0, 1], pa.int32()), "class": pa.array([0, 0], pa.int32())})
    write_trace(tmp_path / "run", {"kind": "predicted"}, events(), classes)
    return tmp_path / "run"


def foreign(run: Path, table: pa.Table, name: str = "events.parquet", **options: object) -> Path:
    """Put another table in, and no digests, as another program would."""
    pq.write_table(table, run / name, **options)
    manifest = {k: v for k, v in read_manifest(run).items() if k != "sha256"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    return run


def read_all(run: Path) -> None:
    read_trace(run)
    read_classes(run, read_manifest(run))


def refused(run: Path) -> str:
    with pytest.raises(DescriptionError) as caught:
        read_all(run)
    return str(caught.value)


@examples(0.6)
@given(st.data())
def test_no_bit_can_change_unseen(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bits") / "run"
    write_trace(folder, {"kind": "measured"}, events())
    path = folder / "events.parquet"
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    assert "is damaged" in refused(folder)


@examples(0.6)
@given(st.data())
def test_damaged_files_without_digests_end_in_a_message(tmp_path_factory, data):
    """Another program's run has no digests: what is read of it is a valid table or nothing."""
    folder = tmp_path_factory.mktemp("bits") / "run"
    write_trace(folder, {"kind": "measured"}, events())
    foreign(folder, events())
    path = folder / "events.parquet"
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.sampled_from([len(whole), len(whole) // 2]))])
    try:
        table = read_trace(folder).events
    except DescriptionError:
        return
    assert check_table(table) == []


def test_classes_are_read_and_checked(run):
    assert read_classes(run, read_manifest(run)) == {0: 0, 1: 0}
    twice = pa.table({"rank": pa.array([1, 1], pa.int32()), "class": pa.array([0, 1], pa.int32())})
    assert "have two classes" in refused(foreign(run, twice, "classes.parquet"))
    words = pa.table({"rank": ["a"], "class": ["b"]})
    assert "of whole numbers" in refused(foreign(run, words, "classes.parquet"))
    assert "of whole numbers" in refused(foreign(run, twice.select(["rank"]), "classes.parquet"))
    (run / "classes.parquet").unlink()
    assert read_classes(run, read_manifest(run)) is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (events().append_column("rank", pa.array([1])), "damaged"),
        (events().set_column(0, "rank", pa.array([2**40])), "not in range"),
        (events().set_column(13, "start_ns", pa.array([2**63 + 5], pa.uint64())), "not in range"),
        (events().set_column(1, "stream", pa.array([{"a": 1}])), "stream is struct"),
        (events().set_column(2, "op", pa.array([["a"]])), "op is list"),
        (events().set_column(2, "op", pa.array([b"\xff"], pa.binary()).view(pa.string())), "Invalid UTF8"),
        (events(kind="nap"), "unknown kind"),
        (events(stream="x"), "wrong stream"),
        (events(kind="wait"), "over no axis"),
        (events(bytes=float("inf")), "negative, NaN or infinite"),
        (events(flops=-1.0), "negative, NaN or infinite"),
        (events(rank=-1), "negative rank"),
        (events(step=-3), "negative step"),
        (events(arrival_ns=-1), "before the run"),
        (events(end_ns=2**62), "thousand days"),
    ],
)
def test_tables_that_make_no_sense_are_refused(run, table, words):
    assert words in refused(foreign(run, table))


def test_small_files_of_many_rows_are_not_unpacked(run, monkeypatch):
    """The limit is read off the file's own summary, and off what comes out where that lies."""
    many = pa.concat_tables([events()] * 1000).set_column(2, "op", pa.array([f"step0/{i}" for i in range(1000)]))
    monkeypatch.setattr(store, "MAX_EVENTS", 999)
    foreign(run, many)
    assert "has 1,000 rows" in refused(run)
    monkeypatch.setattr(store, "MAX_EVENTS", 1000)
    monkeypatch.setattr(store, "MAX_TABLE_BYTES", 20_000)
    assert "unpacks to more than 20,000 bytes" in refused(run)
    monkeypatch.setattr(store, "MAX_TABLE_BYTES", 1000)
    assert "bytes; a run has at most" in refused(run)


def test_other_columns_are_not_read(run):
    more = events().append_column("photo", pa.array([b"x" * 1000]))
    assert read_trace(foreign(run, more)).events.column_names == SCHEMA.names


def test_only_regular_files_are_read(run):
    (run / "events.parquet").unlink()
    os.mkfifo(run / "events.parquet")
    assert "is not a regular file" in refused(run)


def test_words_that_are_listed_twice_are_one_word():
    doubled = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array(["a", "a", "b"]))
    numbers, words = codes(pa.chunked_array([doubled, doubled]))
    assert words == ["a", "b"]
    assert numbers.tolist() == [0, 0, -1, 1] * 2
    assert codes(pa.chunked_array([], doubled.type))[0].dtype == np.int64
