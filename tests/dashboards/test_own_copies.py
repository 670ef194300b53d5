"""Communication of jobs with `offload`: a rank's own copies wait for nobody, and cross a link of their own."""

from __future__ import annotations

import numpy as np
import pytest

from dashboards.catalog import Catalog
from dashboards.collectives import collectives_of, link_loads
from dashboards.events import Events, columns, events_of
from dashboards.members import members_of
from tests.compare.compare_traces import collective, table
from twin import load_job, simulate
from twin.compare.kinds import OTHER_COLLECTIVE, collective_kind
from twin.schedule.ops import OWN_STREAMS

JOB = {
    "name": "offloaded",
    "model": "llama-3-8b",
    "machine": "4xh100",
    "ranks": 4,
    "strategy": "fsdp",
    "flavour": "deepspeed",
    "reduce_precision": "compute",
    "grid": {"weights": 4},
    "batch": {"sequences": 4, "micro_sequences": 1},
    "offload": {"optimizer": {"stride": 2, "sub_group_elements": 100_000_000, "overlapped_gradients": True}},
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """One run that copies to its host and back."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(load_job(JOB)).write(folder / "offloaded")
    return Catalog(folder)


def own(events: Events) -> dict[str, list[int]]:
    """Rows of a rank's own ops, by stream; each rank's own."""
    rows = np.flatnonzero(events.kind.are("collective")).tolist()
    return {stream: [row for row in rows if events.stream[row] == stream] for stream in OWN_STREAMS}


def test_what_queues_is_not_said_to_wait_for_others(catalog: Catalog) -> None:
    """All ranks do the same at once, so nobody waits for a member; ZeRO-3's one communicator has them queue."""
    (entry,) = catalog.entries()
    events = events_of(catalog, entry)
    found = collectives_of(events, members_of(entry, events))
    rows = np.flatnonzero(events.kind.are("collective")).tolist()
    waited = sum(max(int(events.start_ns[row] - events.arrival_ns[row]), 0) for row in rows)
    assert found.queued_seconds_per_rank == pytest.approx(waited / 1e9 / len(events.ranks))
    assert found.skew_seconds_per_rank == pytest.approx(0.0, abs=1e-6)
    queueing = {row.stream for row in found.rows if row.total_queue_ns}
    assert queueing - set(OWN_STREAMS), "gathers of weights queue behind reductions of gradients"
    assert queueing & set(OWN_STREAMS), "copies queue behind one another"


def test_a_late_member_is_skew_and_the_collective_before_is_a_queue() -> None:
    """By hand: rank 1 comes at 30 to the first of two collectives that take 10; both are told to the second at once.

    Rank 0 waits 30 - 2 for its member, and the second queues there from 3 to 40; on rank 1 from 31 to 40.
    """
    come = {0: (2, 3), 1: (30, 31)}
    said = {
        rank: [
            *collective("micro0/fwd/qkv/all_reduce_x", first, 30, 40, (first, 40)),
            *collective("micro0/fwd/proj/all_reduce_x", second, 40, 50, (40, 50)),
        ]
        for rank, (first, second) in come.items()
    }
    found = collectives_of(columns(table(said)), {"x": 2})
    rows = [(row.name.split("/")[0], row.total_skew_ns, row.total_queue_ns) for row in found.rows]
    assert sorted(rows) == [("proj", 0.0, 37.0 + 9.0), ("qkv", 28.0, 0.0)]


def test_the_link_to_the_host_carries_what_is_copied(catalog: Catalog) -> None:
    """Bytes of the event table; the rates are those of the machine's file."""
    (entry,) = catalog.entries()
    events = events_of(catalog, entry)
    bytes_of = {s: sum(float(events.bytes[r]) for r in rows) / len(events.ranks) for s, rows in own(events).items()}
    loads = {row["link"]: row for row in link_loads(entry)}
    assert loads["host link, down"]["a step, most (B)"] == pytest.approx(bytes_of["down"])
    assert loads["host link, up"]["a step, most (B)"] == pytest.approx(bytes_of["up"] + bytes_of["cast"])
    assert "memory of a host's socket" in loads


def test_every_own_op_has_a_kind_of_its_own(catalog: Catalog) -> None:
    (entry,) = catalog.entries()
    events = events_of(catalog, entry)
    kinds = {s: {collective_kind(events.name[r], events.axis[r]) for r in rows} for s, rows in own(events).items()}
    assert OTHER_COLLECTIVE not in set().union(*kinds.values())
    assert kinds["cpu"] == {"update by the host"}
