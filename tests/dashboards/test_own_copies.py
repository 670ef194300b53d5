"""Communication of jobs with `offload`: a rank's own copies wait for nobody, and cross a link of their own."""

from __future__ import annotations

import numpy as np
import pytest

from dashboards.catalog import Catalog
from dashboards.collectives import collectives_of, link_loads
from dashboards.events import Events, events_of, grid_of
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
    (entry,) = catalog.entries()
    events = events_of(catalog, entry)
    found = collectives_of(events, grid_of(entry))
    rows = [row for of_stream in own(events).values() for row in of_stream]
    queued = sum(max(int(events.start_ns[row] - events.arrival_ns[row]), 0) for row in rows)
    assert queued > 0
    assert found.queued_seconds_per_rank == pytest.approx(queued / 1e9 / len(events.ranks))
    both = sum(row.total_skew_ns for row in found.rows) / 1e9 / len(events.ranks)
    assert found.skew_seconds_per_rank + found.queued_seconds_per_rank == pytest.approx(both)


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
