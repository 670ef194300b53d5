"""Runs and recordings of strangers: manifests, tables, schedules."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from tests.compare.compare_traces import JOB, by_hand_measured, by_hand_predicted, table, write
from tests.fuzz.harness import cases, fuzz, survives, tree
from tests.fuzz.mutations import NUMBERS, as_json, damaged, texts
from twin.compare.compare import compare
from twin.compare.page import write_page
from twin.engine.replay import replay
from twin.engine.report import report
from twin.pages.timeline import lanes
from twin.schedule.recording import Recording, read_recording, write_recording
from twin.strategies import load_job
from twin.strategies.four_d.step import generate
from twin.trace.chrome import write_chrome
from twin.trace.store import read_classes, read_trace


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A predicted and a measured run, as they were written."""
    classes = pa.table({"rank": pa.array([0, 1], pa.int32()), "class": pa.array([0, 1], pa.int32())})
    predicted = write(
        tmp_path / "predicted",
        "predicted",
        table(by_hand_predicted()),
        classes=classes,
        figures={"step_seconds": 18e-9},
    )
    return predicted, write(tmp_path / "measured", "measured", table(by_hand_measured()))


def read_everything(predicted: Path, measured: Path, out: Path) -> None:
    """Do with two runs what commands do."""
    found = compare(predicted, measured)
    write_page(out / "page.html", found, overwrite=True)
    for run in (predicted, measured):
        trace = read_trace(run)
        read_classes(run, trace.manifest)
        if run.name == "damaged":
            write_chrome(out / "trace.json", trace.events, {})
            lanes(trace.events, {})


def without_digests(run: Path) -> dict[str, Any]:
    """As another program would write it."""
    return {k: v for k, v in json.loads((run / "manifest.json").read_text()).items() if k != "sha256"}


def stand_in(run: Path, place: Path) -> Path:
    """A copy to be damaged, in place of the one before."""
    copy = place / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    return copy


def both_ways(pair: tuple[Path, Path], which: int, copy: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    before = tree(copy)
    runs = (copy, pair[1]) if which == 0 else (pair[0], copy)
    survives(lambda: read_everything(*runs, out), out)
    assert tree(copy) == before


@cases(40, 1500)
def test_manifests(count: int, pair: tuple[Path, Path], tmp_path: Path) -> None:
    manifests = [without_digests(run) for run in pair]

    def check(case: tuple[int, bytes]) -> None:
        which, text = case
        copy = stand_in(pair[which], tmp_path)
        (copy / "manifest.json").write_bytes(text)
        both_ways(pair, which, copy, tmp_path / "out")

    fuzz(count, st.integers(0, 1).flatmap(lambda n: st.tuples(st.just(n), texts(manifests[n], as_json))), check)


TYPES = [
    pa.int8(),
    pa.uint64(),
    pa.int64(),
    pa.float32(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.bool_(),
    pa.null(),
    pa.timestamp("ns"),
    pa.list_(pa.int32()),
    pa.decimal128(20, 2),
    pa.dictionary(pa.int8(), pa.string()),
]
WHOLE = [n for n in NUMBERS if isinstance(n, int) and -(2**63) <= n < 2**63]


@st.composite
def tables(draw: st.DrawFn, whole: pa.Table) -> pa.Table:
    """Change columns: their types, values, names; drop, double, shuffle."""
    found = whole
    for _ in range(draw(st.integers(1, 3))):
        if not found.num_columns:
            return found
        at = draw(st.integers(0, found.num_columns - 1))
        name, column = found.column_names[at], found.column(at)
        values = column.to_pylist()
        how = draw(st.sampled_from(["type", "value", "value", "null", "drop", "double", "rename", "rows", "words"]))
        try:
            if how == "type":
                found = found.set_column(at, name, column.cast(draw(st.sampled_from(TYPES))))
            elif how == "value" and values:
                row = draw(st.integers(0, len(values) - 1))
                values[row] = draw(st.sampled_from(WHOLE if pa.types.is_integer(column.type) else NUMBERS))
                found = found.set_column(at, pa.field(name, column.type), pa.array(values, column.type))
            elif how == "words" and values:
                values[draw(st.integers(0, len(values) - 1))] = draw(st.text(max_size=8))
                found = found.set_column(at, name, pa.array(values, pa.string()))
            elif how == "null" and values:
                values[draw(st.integers(0, len(values) - 1))] = None
                found = found.set_column(at, pa.field(name, column.type), pa.array(values, column.type))
            elif how == "drop":
                found = found.remove_column(at)
            elif how == "double":
                found = found.append_column(name, column)
            elif how == "rename":
                found = found.rename_columns(
                    [draw(st.text(max_size=5)) if n == name else n for n in found.column_names]
                )
            elif how == "rows":
                found = found.take(
                    draw(st.lists(st.integers(0, max(0, found.num_rows - 1)), max_size=12)) if found.num_rows else []
                )
        except (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, IndexError):
            continue  # a table that cannot be made cannot be read
    return found


@cases(40, 1200)
def test_tables(count: int, pair: tuple[Path, Path], tmp_path: Path) -> None:
    wholes = [
        (which, name, pq.read_table(pair[which] / name))
        for which, name in ((0, "events.parquet"), (1, "events.parquet"), (0, "classes.parquet"))
    ]

    def check(case: tuple[int, str, pa.Table]) -> None:
        which, name, changed = case
        copy = stand_in(pair[which], tmp_path)
        try:
            pq.write_table(changed, copy / name)
        except pa.ArrowException:
            return
        (copy / "manifest.json").write_text(json.dumps(without_digests(copy)))
        both_ways(pair, which, copy, tmp_path / "out")

    fuzz(count, st.sampled_from(wholes).flatmap(lambda w: st.tuples(st.just(w[0]), st.just(w[1]), tables(w[2]))), check)


@cases(25, 800)
def test_bytes_of_tables(count: int, pair: tuple[Path, Path], tmp_path: Path) -> None:
    wholes = [(0, "events.parquet"), (1, "events.parquet"), (0, "classes.parquet")]

    def check(case: tuple[int, str, bytes]) -> None:
        which, name, content = case
        copy = stand_in(pair[which], tmp_path)
        (copy / name).write_bytes(content)
        (copy / "manifest.json").write_text(json.dumps(without_digests(copy)))
        both_ways(pair, which, copy, tmp_path / "out")

    files = st.sampled_from(wholes).flatmap(
        lambda w: st.tuples(st.just(w[0]), st.just(w[1]), damaged((pair[w[0]] / w[1]).read_bytes()))
    )
    fuzz(count, files, check)


STRANGE = ["missing", "folder", "pipe", "to itself", "to zeros", "empty", "to nothing"]


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", ["manifest.json", "events.parquet", "classes.parquet"])
def test_what_is_no_file(pair: tuple[Path, Path], tmp_path: Path, name: str, strange: str) -> None:
    copy = stand_in(pair[0], tmp_path)
    (copy / "manifest.json").write_text(json.dumps(without_digests(copy)))
    put_strange(copy / name, strange)
    both_ways(pair, 0, copy, tmp_path / "out")


def put_strange(path: Path, strange: str) -> None:
    """Put something in place of a file that is none."""
    path.unlink()
    match strange:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "to itself":
            path.symlink_to(path)
        case "to zeros":
            path.symlink_to("/dev/zero")
        case "to nothing":
            path.symlink_to(path.with_name("nothing"))
        case "empty":
            path.write_bytes(b"")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    job = load_job({**JOB, "machine": "perlmutter"})
    path = tmp_path / "recording.json"
    described = job.model_dump(mode="json", by_alias=True)
    write_recording(path, Recording(job.concrete_grid.mesh, 0, generate(job), described))
    return path


@cases(40, 1200)
def test_recordings(count: int, recording: Path, tmp_path: Path) -> None:
    path, packed = tmp_path / "damaged.json", tmp_path / "damaged.json.gz"
    original = json.loads(recording.read_bytes())

    def check(case: tuple[bytes, bool, bool]) -> None:
        text, zipped, named = case
        place = packed if zipped else path
        place.write_bytes(gzip.compress(text, 1) if zipped else text)

        def answer() -> None:
            replayed = replay(place, None, "perlmutter" if named else None, [], "folded")
            replayed.answer(0.0)
            report(replayed.simulation)

        survives(answer)
        survives(lambda: read_recording(place))

    documents = st.one_of(texts(original, as_json), texts({**original, "job": None}, as_json))
    fuzz(count, st.tuples(documents, st.booleans(), st.booleans()), check)


@cases(10, 200)
def test_bytes_of_packed_recordings(count: int, recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.json.gz"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        survives(lambda: read_recording(path))

    fuzz(count, damaged(gzip.compress(recording.read_bytes(), 1)), check)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = b'{"format": "fourfold-schedule"' + b" " * (300 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(bomb, 1))
    del bomb
    assert survives(lambda: read_recording(tmp_path / "bomb.json.gz")) is None
