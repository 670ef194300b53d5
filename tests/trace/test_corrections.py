"""What putting ranks together changes is counted, and stands in the manifest."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from runtime.parallel.mesh import Mesh
from runtime.parallel.ops import Op
from runtime.tracing.clock import ClockOffset
from runtime.tracing.listener import Note
from runtime.tracing.write import Corrections, notes_table, put_together, write_run_trace
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid
from twin.trace.store import read_trace

JOB = {
    "name": "two",
    "machine": "laptop",
    "ranks": 2,
    "grid": {"x": 2},
    "precision": "fp32",
    "model": {"layers": 1, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 32},
    "batch": {"sequences": 1, "micro_sequences": 1},
}


def rank_table(rank: int, *notes: tuple[str, int, int], offset: int = 0):
    grid = Grid(x=2)
    mesh = Mesh(grid, rank, grid.coordinates(rank), {}, None)
    made = [Note(Op(name, "fwd", None, 0, communicator="x"), "collective", 0, begin, end) for name, begin, end in notes]
    return notes_table(made, mesh, ClockOffset(offset, 0, ""))


def test_sound_clocks_change_nothing():
    tables = [rank_table(0, ("a", 0, 30)), rank_table(1, ("a", 10, 31))]
    assert put_together(tables)[1] == Corrections(0, 0, 0, 0)


def test_ends_before_the_last_arrival_are_counted():
    """Rank 1 came at 70 by its clock, when rank 0 was through at 30 and, in b, at 95 of 100."""
    tables = [rank_table(0, ("a", 0, 30), ("b", 80, 95)), rank_table(1, ("a", 70, 75), ("b", 100, 120))]
    events, changed = put_together(tables)
    assert changed == Corrections(ends_moved=2, largest_ns=40, put_in_a_row=0, largest_overlap_ns=0)
    ends = [r["end_ns"] for r in events.to_pylist() if r["rank"] == 0]
    assert ends == [70, 100]


def test_collectives_that_overlap_on_one_communicator_are_counted():
    tables = [rank_table(rank, ("a", 0, 50), ("b", 10, 40)) for rank in (0, 1)]
    assert put_together(tables)[1] == Corrections(0, 0, put_in_a_row=2, largest_overlap_ns=40)


def test_a_message_starts_when_both_ends_have_come():
    """Ends call it by different names; two go down and one goes up, each end in the order of its own chunks."""
    grid = Grid(x=2)
    sent = {
        0: [("a/send", "send", 10, 31), ("b/send", "send", 40, 95), ("c/receive", "receive", 96, 120)],
        1: [("z/send", "send", 5, 119), ("x/receive", "receive", 30, 32), ("y/receive", "receive", 90, 94)],
    }
    tables = []
    for rank, own in sent.items():
        notes = [
            Note(Op(name, "fwd", None, 0, kind=kind, communicator="x"), "collective", 0, begin, end)
            for name, kind, begin, end in own
        ]
        mesh = Mesh(grid, rank, grid.coordinates(rank), {}, None)
        tables.append(notes_table(notes, mesh, ClockOffset(0, 0, "")))
    events = put_together(tables)[0].to_pylist()
    start = {row["op"].removeprefix("step0/"): row["start_ns"] + 5 for row in events}
    assert start == {"a/send": 30, "x/receive": 30, "b/send": 90, "y/receive": 90, "c/receive": 96, "z/send": 96}


def test_the_manifest_says_it(tmp_path):
    tables = [rank_table(0, ("a", 0, 30)), rank_table(1, ("a", 70, 75))]
    clocks = [ClockOffset(0, 0, "one"), ClockOffset(0, 0, "one")]
    write_run_trace(tmp_path / "run", load_job(JOB), tables, clocks, {}, overwrite=False)
    assert read_trace(tmp_path / "run").manifest["corrections"] == {
        "ends_moved": 1,
        "largest_ns": 40,
        "put_in_a_row": 0,
        "largest_overlap_ns": 0,
    }
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["kind"] == "measured"
