"""Communication of a pipeline: groups that are not a whole axis, and messages that are asked for ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.catalog import Catalog
from dashboards.collectives import Row, collectives_of, predicted_curve
from dashboards.events import columns, events_of
from dashboards.members import members_of, met
from dashboards.page import PageContext
from dashboards.pages import communication
from dashboards.settings import Settings
from tests.compare.compare_traces import collective, table, write
from tests.dashboards.test_pages import text_of
from twin.api import Prediction, simulate
from twin.engine.single import collective_answer

JOB: dict[str, Any] = {
    "strategy": "megatron",
    "model": {"layers": 8, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024, "tied_embeddings": True},
    "machine": "selene",
    "ranks": 16,
    "grid": {"pipeline": 4, "data": 2, "tensor": 2},
    "schedule": "interleaved",
    "chunks": 2,
    "batch": {"sequences": 16, "micro_sequences": 1},
}


@pytest.fixture(scope="module")
def predicted() -> Prediction:
    return simulate(JOB)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, predicted: Prediction) -> Catalog:
    folder = tmp_path_factory.mktemp("runs")
    predicted.write(folder / "pipeline")
    return Catalog(folder)


def rows_of(catalog: Catalog) -> list[Row]:
    (entry,) = catalog.entries()
    events = events_of(catalog, entry)
    return list(collectives_of(events, members_of(entry, events)).rows)


def test_ends_of_a_pipeline_are_two_members_and_not_its_axis(catalog: Catalog) -> None:
    """Stages 0 and 3 sum the tied embedding's gradients: rank 0 and rank 12, alone on their nodes."""
    (tied,) = [row for row in rows_of(catalog) if "tied" in row.name]
    assert tied.members == 2
    bus = tied.bus_bytes_per_second
    assert bus is not None
    assert bus == pytest.approx(1.0 * tied.bytes / (tied.transfer_ns / 1e9))  # 2 (n - 1) / n of two
    alone = collective_answer("selene", "all_reduce", 2, f"{tied.bytes:.0f}", 12, None)
    assert bus <= 1.001 * alone["bus_bandwidth_bytes_per_second"]


def test_messages_have_two_ends_and_gradients_the_ranks_that_hold_them(catalog: Catalog) -> None:
    rows = rows_of(catalog)
    messages = [row for row in rows if row.kind == "message"]
    assert messages
    assert {row.members for row in messages} == {2}
    for row in messages:
        assert row.bus_bytes_per_second == pytest.approx(row.bytes / (row.transfer_ns / 1e9))
    assert {row.members for row in rows if row.axis == "tensor"} == {2}
    assert {row.members for row in rows if row.stream == "pipeline_model"} == {8}  # of four stages, two tensor ranks


def test_a_rank_stands_still_as_long_as_simulate_says(catalog: Catalog, predicted: Prediction) -> None:
    """Receives are asked for many passes ahead: until their messages come, the device computes."""
    rows = rows_of(catalog)
    waiting = predicted.figures.peers_by_axis
    (entry,) = catalog.entries()
    ranks = len(events_of(catalog, entry).ranks)
    for axis in ("pipeline", "tensor", "data"):
        held = sum(row.total_skew_ns for row in rows if row.axis == axis) / 1e9 / ranks
        assert held == pytest.approx(waiting.get(axis, 0.0), abs=2e-3 * predicted.step_seconds)
    found = sum(row.total_ahead_ns for row in rows if row.name.endswith("/receive"))
    assert found > 0.1 * sum(row.total_skew_ns for row in rows)
    page = communication.shown(PageContext(Settings(catalog.root), catalog), {"run": entry.name})
    assert "what it asks for ahead, such as receives, waits" in text_of(page)


def test_a_receive_that_is_asked_for_ahead_by_hand() -> None:
    """Asked for at 0, needed from 50, sent at 70, there at 80; the second is asked for at 0 too and queues until 80."""
    rank = [
        *collective("messages/micro0/F/receive", 0, 70, 80, (50, 80), axis="pipeline"),
        *collective("messages/micro1/F/receive", 0, 90, 95, (92, 95), axis="pipeline"),
    ]
    rows = [replace(row, op=row.op.replace("messages/", "micro0/fwd/messages/")) for row in rank]
    (row,) = collectives_of(columns(table({0: rows})), {}).rows
    assert (row.name, row.count) == ("messages/F/receive", 2.0)
    assert (row.total_skew_ns, row.total_queue_ns, row.total_ahead_ns) == (20.0, 80.0, 50.0 + 10.0)


def test_messages_of_all_micro_batches_have_one_name(catalog: Catalog) -> None:
    """Two directions of two chunks, and the two ends of each."""
    names = {row.name for row in rows_of(catalog) if row.kind == "message"}
    assert names == {f"messages/{way}{chunk}/{end}" for way in "FB" for chunk in (0, 1) for end in ("send", "receive")}


def test_every_group_of_an_axis_has_a_line_of_its_own(catalog: Catalog) -> None:
    """Ends of the pipeline, and the ranks of one copy of the model, both all-reduce and count as the pipeline's."""
    (entry,) = catalog.entries()
    found = {curve["name"] for curve in predicted_curve(entry) if curve["axis"] == "pipeline"}
    assert found == {"all_reduce, pipeline, 2 members on 2 nodes", "all_reduce, pipeline, 8 members on 2 nodes"}


def test_members_of_an_unknown_job_are_counted_or_not_told(tmp_path: Path) -> None:
    """Both ranks of a run met; where the table has one of two, nobody knows with how many it did."""
    rank = collective("micro0/fwd/qkv/all_reduce_x", 0, 0, 10, (0, 10))
    assert met(columns(table({0: rank, 1: rank})), 2) == {"x": 2}
    assert met(columns(table({0: rank})), 2) == {}
    (row,) = collectives_of(columns(table({0: rank})), {}).rows
    assert (row.members, row.bus_bytes_per_second) == (None, None)
    unknown = {**JOB, "strategy": "elsewhere", "grid": {"x": 2}}
    write(tmp_path / "odd", "measured", table({0: rank}))
    catalog = Catalog(tmp_path)
    (entry,) = catalog.entries()
    entry.head["job"] = unknown
    page = communication.shown(PageContext(Settings(tmp_path), catalog), {"run": entry.name})
    (grid,) = [part for part in page._traverse() if getattr(part, "id", "") == "bandwidth-table"]
    assert [(cells["members"], cells["bus bandwidth (B/s)"]) for cells in grid.rowData] == [("–", "–")]
    assert text_of(page)
