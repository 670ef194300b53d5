"""Recorded steps: a valid event table with the twin's op names, and nothing different for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from runtime.parallel.mesh import Mesh
from runtime.parallel.ops import Op
from runtime.tracing.clock import ClockOffset
from runtime.tracing.listener import Note
from runtime.tracing.write import merge, notes_table
from tests.runtime import runs
from tests.tiers import makes
from twin.schedule.ops import Compute, Start, Wait
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.step import generate
from twin.trace.store import read_trace
from twin.trace.table import check_table


@pytest.fixture(scope="module")
@makes("process")
def traced(tmp_path_factory) -> tuple[Path, dict[int, float], dict[int, float]]:
    """Trace of steps 2 and 3, losses with and without tracing."""
    folder = tmp_path_factory.mktemp("traced")
    job = runs.write_job(folder, grid={"data": 1, "z": 2, "y": 1, "x": 2}, ranks=4, recompute=True, train={"steps": 4})
    with_trace = runs.train(
        job, "--ranks", "4", "--out", str(folder / "a"), "--trace", str(folder / "trace"), "--trace-steps", "2-3"
    )
    assert with_trace.returncode == 0, with_trace.stderr
    without = runs.train(job, "--ranks", "4", "--out", str(folder / "b"))
    assert without.returncode == 0, without.stderr
    return folder, runs.losses(folder / "a"), runs.losses(folder / "b")


def test_the_trace_is_valid_and_says_what_it_is(traced):
    trace = read_trace(traced[0] / "trace")  # which checks the table
    assert trace.manifest["kind"] == "measured"
    assert trace.manifest["steps"] == [2, 3]
    assert trace.manifest["clock"] == {"method": "one host's monotonic clock", "uncertainty_ns": 0}
    assert set(trace.events["rank"].to_pylist()) == {0, 1, 2, 3}
    assert (traced[0] / "trace" / "timeline.html").stat().st_size > 10_000


def test_tracing_changes_no_result(traced):
    _, with_trace, without = traced
    assert with_trace == without


def test_ranks_do_the_same_ops_in_the_same_order(traced):
    events = read_trace(traced[0] / "trace").events
    by_rank = [
        [op for op, kind in zip(part["op"].to_pylist(), part["kind"].to_pylist(), strict=True) if kind == "compute"]
        for part in (events.filter(pc.equal(events["rank"], rank)) for rank in range(4))
    ]
    assert by_rank[0]
    assert all(ops == by_rank[0] for ops in by_rank)


def test_a_collective_starts_when_its_last_member_arrives(traced):
    events = read_trace(traced[0] / "trace").events
    rows = [r for r in events.to_pylist() if r["kind"] == "collective"]
    groups: dict[tuple[str, int], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["group"]), []).append(row)
    for members in groups.values():
        assert len(members) == 2
        last = max(m["arrival_ns"] for m in members)
        assert all(m["start_ns"] >= last for m in members)


def test_ops_are_the_twins(traced):
    """Every op of a real step on gloo: order, names, kinds, streams, bytes and flops."""
    folder, _, _ = traced
    found = [
        (r["op"].removeprefix("step2/").removesuffix("/wait"), r["kind"], r["stream"], r["bytes"], r["flops"])
        for r in read_trace(folder / "trace").events.to_pylist()
        if r["rank"] == 0 and r["step"] == 2
    ]
    expected = []
    for name, op in generate(load_job(folder / "job.yaml")).named():
        match op:
            case Compute():
                expected.append((name, "compute", "compute", op.kernel.bytes, op.kernel.flops))
            case Start():
                expected.append((name, "collective", op.communicator, op.bytes, 0.0))
            case Wait():
                expected.append((name, "wait", "compute", 0.0, 0.0))
    assert found == expected


def note(name: str, begin: int, end: int, communicator: str | None = None) -> Note:
    kind = "collective" if communicator else "compute"
    return Note(Op(name, "fwd", None, 0, kind=None, communicator=communicator), kind, 0, begin, end)


def test_clocks_are_brought_together():
    """Rank 1's clock is a second behind; the later arrival decides."""
    meshes = [Mesh(Grid(x=2), rank, Grid(x=2).coordinates(rank), {}, None) for rank in (0, 1)]
    tables = [
        notes_table([note("a", 1000, 3000), note("ar", 3000, 9000, "x")], meshes[0], ClockOffset(0, 0, "")),
        notes_table(
            [note("a", 1500 - 10**9, 5000 - 10**9), note("ar", 5000 - 10**9, 9100 - 10**9, "x")],
            meshes[1],
            ClockOffset(10**9, 50, ""),
        ),
    ]
    merged = merge(tables)
    assert check_table(merged) == []
    rows = {(r["rank"], r["op"]): r for r in merged.to_pylist()}
    assert [rows[rank, "step0/ar"]["arrival_ns"] for rank in (0, 1)] == [2000, 4000]
    assert [rows[rank, "step0/ar"]["start_ns"] for rank in (0, 1)] == [4000, 4000]
    assert rows[1, "step0/a"]["start_ns"] == 500


def test_collectives_that_gloo_ran_side_by_side_are_put_in_a_row():
    mesh = Mesh(Grid(x=2), 0, Grid(x=2).coordinates(0), {}, None)
    table = notes_table(
        [note("a", 0, 50, "x"), note("b", 10, 40, "x"), note("c", 20, 90, "x")], mesh, ClockOffset(0, 0, "")
    )
    merged = merge([table])
    assert check_table(merged) == []
    assert np.all(np.diff(merged["start_ns"].to_numpy()) >= 0)
