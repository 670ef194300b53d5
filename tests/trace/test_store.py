"""Runs on disk: what is written comes back, whole or not at all, and broken ones are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from twin.description.problems import DescriptionError
from twin.engine.events import event_table
from twin.engine.report import as_json, report
from twin.engine.runs import write_run
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.trace.store import read_manifest, read_trace, write_trace
from twin.trace.table import SCHEMA, check_table


@pytest.fixture(scope="module")
def simulation(make_job) -> Simulation:
    return simulate(make_job({"data": 2, "z": 3, "y": 2, "x": 2}, stragglers=[{"rank": 7, "slowdown": 1.3}]))


@pytest.fixture(scope="module")
def events(simulation) -> pa.Table:
    return event_table(simulation, [0, 7, 23])


@pytest.fixture
def run(tmp_path, events) -> Path:
    """Return a good run on disk."""
    write_trace(tmp_path / "run", {"kind": "predicted"}, events)
    return tmp_path / "run"


def changed(table: pa.Table, column: str, row: int, value: int) -> pa.Table:
    """Replace one number."""
    values = table.column(column).to_numpy().copy()
    values[row] = value
    return with_column(table, column, pa.array(values))


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def refused(run: Path) -> str:
    with pytest.raises(DescriptionError) as caught:
        read_trace(run)
    return str(caught.value)


def test_a_written_run_comes_back(run, events) -> None:
    trace = read_trace(run)
    assert {k: v for k, v in trace.manifest.items() if k != "sha256"} == {"schema_version": 1, "kind": "predicted"}
    assert trace.events.to_pylist() == events.to_pylist()
    assert trace.events.column_names == SCHEMA.names


def test_an_empty_table_is_a_table(tmp_path) -> None:
    write_trace(tmp_path / "run", {}, SCHEMA.empty_table())
    assert read_trace(tmp_path / "run").events.num_rows == 0


def test_events_are_the_simulation(simulation, events) -> None:
    """Every op of every chosen rank once; times rounded to nanoseconds; groups by coordinates."""
    program, grid = simulation.program, simulation.job.concrete_grid
    assert events.num_rows == 3 * len(program)
    assert check_table(events) == []
    rows = events.to_pylist()
    assert len({(row["rank"], row["op"]) for row in rows}) == len(rows)
    assert len({(row["rank"], row["op"]) for row in rows if row["kind"] == "collective"}) > 0
    for number, row in enumerate(rows):
        rank_class = simulation.partition.rank_class[row["rank"]]
        at = number % len(program)
        for what in ("start", "end", "arrival"):
            seconds = getattr(simulation.timeline, what)[rank_class, at]
            assert abs(row[f"{what}_ns"] - seconds * 1e9) <= 0.5 + 1e-6
        if row["kind"] != "compute":
            own = grid.coordinates(row["rank"])
            sizes = [(grid.size(a), own[a]) for a in ("data", "z", "y", "x") if a != row["axis"]]
            group = 0
            for size, coordinate in sizes:
                group = group * size + coordinate
            assert row["group"] == group
        else:
            assert row["group"] is None


@pytest.mark.parametrize(
    ("column", "value", "words"), [("end_ns", -5, "end before they start"), ("start_ns", 0, "overlap")]
)
def test_impossible_times_are_refused(tmp_path, events, column, value, words) -> None:
    write_trace(tmp_path / "run", {}, changed(events, column, 40, value))
    assert words in refused(tmp_path / "run")


def test_overlap_is_per_rank_and_stream(events) -> None:
    """Compute beside collectives is no overlap; two ops of one stream are."""
    stream = np.array(events.column("stream").to_pylist())
    one = events.filter(pa.array(stream == "compute"))
    start, end = one["start_ns"].to_numpy(), one["end_ns"].to_numpy()
    long = int(np.flatnonzero(end - start > 10)[3])
    broken = changed(one, "end_ns", long - 1, int(start[long]) + 5)
    assert any("overlap" in problem for problem in check_table(broken))
    assert check_table(one) == []


def test_missing_and_wrong_columns_are_named(tmp_path, events) -> None:
    for number, name in enumerate(SCHEMA.names):
        run = tmp_path / f"missing{number}"
        write_trace(run, {}, events.drop_columns([name]))
        assert f"column {name} is missing" in refused(run)
    words = pa.array(["soon"] * events.num_rows)
    write_trace(tmp_path / "words", {}, with_column(events, "start_ns", words))
    assert "start_ns is string, expected int64" in refused(tmp_path / "words")


@pytest.mark.parametrize("name", ["start_ns", "end_ns", "rank", "stream", "op"])
def test_missing_values_are_refused(tmp_path, events, name) -> None:
    """Columns that every event has must not hold nulls."""
    column = events.column(name).combine_chunks()
    hole = np.zeros(len(column), dtype=bool)
    hole[3] = True
    holed = pc.if_else(pa.array(hole), pa.scalar(None, column.type), column)
    write_trace(tmp_path / "run", {}, with_column(events, name, holed))
    assert name in refused(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_not_parquet_is_refused(run, content) -> None:
    (run / "events.parquet").write_bytes(content)
    assert "events.parquet" in refused(run)


def test_truncated_parquet_is_refused(run) -> None:
    whole = (run / "events.parquet").read_bytes()
    (run / "events.parquet").write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in refused(run)
    (run / "events.parquet").unlink()
    assert "no such file" in refused(run)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ('{"schema_version": 2}', "schema_version is 2"),
        ('{"kind": "predicted"}', "schema_version is None"),
        ("[1]", "schema_version is None"),
        ("{", "cannot be read"),
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_wrong_manifests_are_refused(run, manifest, words) -> None:
    (run / "manifest.json").write_text(manifest)
    assert words in refused(run)


def test_a_directory_without_manifest_is_no_run(tmp_path) -> None:
    assert "manifest.json is missing" in refused(tmp_path)
    assert "no such directory" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "is not a directory" in refused(tmp_path / "file")


def test_existing_directories_are_kept(tmp_path, run, events) -> None:
    with pytest.raises(DescriptionError, match="exists already"):
        write_trace(run, {}, events)
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "holiday.jpg").write_bytes(b"sun")
    with pytest.raises(DescriptionError, match="not a run of Fourfold"):
        write_trace(foreign, {}, events, overwrite=True)
    assert (foreign / "holiday.jpg").read_bytes() == b"sun"
    write_trace(run, {"kind": "measured"}, events, overwrite=True)
    assert read_manifest(run)["kind"] == "measured"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["photos", "run"]


def test_a_failed_write_leaves_nothing_behind(tmp_path, run, events) -> None:
    """Numbers that JSON cannot hold are found late; neither half a run nor a temporary remains."""
    for overwrite, target in ((False, tmp_path / "new"), (True, run)):
        with pytest.raises(ValueError, match="JSON"):
            write_trace(target, {"bad": float("nan")}, events, overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert read_trace(run).manifest["kind"] == "predicted"


def test_the_old_run_survives_if_the_new_one_cannot_take_its_place(tmp_path, run, events, monkeypatch) -> None:
    rename, failed = Path.rename, []

    def once(self: Path, target: Path) -> Path:
        if Path(target) == run and not failed:
            failed.append(self)
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(DescriptionError, match="cannot be written: No space left"):
        write_trace(run, {"kind": "measured"}, events, overwrite=True)
    assert read_trace(run).manifest["kind"] == "predicted"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_where_nothing_can_be_written_says_so(tmp_path, events) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DescriptionError, match="cannot be written"):
        write_trace(tmp_path / "file" / "run", {}, events)


def test_a_simulated_run_is_complete(tmp_path, simulation) -> None:
    answer = as_json(simulation, report(simulation), 0.1)
    write_run(tmp_path / "run", simulation, answer, None, overwrite=False)
    trace = read_trace(tmp_path / "run")
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == ["classes.parquet", "events.parquet", "job.yaml", "manifest.json", "timeline.html"]
    assert trace.manifest["kind"] == "predicted"
    assert trace.manifest["seed"] == 0
    assert trace.manifest["job"]["ranks"] == 24
    assert trace.manifest["job"]["grid"] == {"data": 2, "z": 3, "y": 2, "x": 2}
    assert json.loads(json.dumps(trace.manifest)) == trace.manifest
    assert sum(entry["ranks"] for entry in trace.manifest["classes"]) == 24
    classes = pq.read_table(tmp_path / "run" / "classes.parquet")
    assert classes["rank"].to_pylist() == list(range(24))
    assert set(trace.events["rank"].to_pylist()) == set(trace.manifest["ranks_written"])


TWICE = """
import hashlib, io, pyarrow.parquet as pq
from twin.strategies import load_job
from twin.engine.events import event_table
from twin.engine.simulate import simulate
job = load_job({
    "model": {"layers": 2, "hidden": 240, "heads": 60, "sequence": 64, "vocabulary": 960},
    "machine": {"extends": "frontier", "nic": {"bandwidth": "300 MB/s"}}, "ranks": 30, "seed": 3,
    "grid": {"data": 3, "z": 5, "x": 2}, "batch": {"sequences": 15, "micro_sequences": 1}})
file = io.BytesIO()
pq.write_table(event_table(simulate(job), range(30)), file)
print(hashlib.sha256(file.getvalue()).hexdigest())
"""


@pytest.mark.process
@pytest.mark.quick
def test_same_job_and_seed_give_the_same_bytes() -> None:
    """In two processes whose hashes of text differ."""
    digests = [
        subprocess.run(
            [sys.executable, "-c", TWICE],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1] != ""
