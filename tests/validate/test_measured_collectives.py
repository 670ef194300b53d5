"""Tables of nccl-tests: where ranks lie, what their collectives are called, what is left out."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.validate.test_measurements import COLLECTIVES, table
from twin.cost.collective import collective_cost
from twin.cost.placement import Placement
from twin.description.load import load_machine
from twin.validate.measurements import validate_file


def test_collectives_over_tcp_are_those_that_were_measured():
    """A fifth of the rate of the library with its plugin, which would miss every large row by far."""
    table = Path(__file__).parents[2] / "examples" / "measured" / "polaris-tcp.csv"
    rows = [row for row in validate_file(table).rows if row["bytes"] >= 4 * 2**20]
    assert len(rows) == 45
    assert median(abs(row["error"]) for row in rows) < 0.15
    polaris = load_machine("polaris")
    for row in rows:
        if row["collective"] == "all_gather" and row["bytes"] >= 64 * 2**20:
            where = Placement.contiguous(int(row["ranks"]), 4, polaris.network.group_nodes)
            quick = collective_cost(polaris, polaris.libraries["nccl"], "all_gather", row["bytes"], where)
            assert 1e6 * quick.seconds < row["microseconds"] / 2


def test_collectives_of_another_table_lie_where_it_says(tmp_path: Path) -> None:
    """One rank on each of ten nodes, nccl-tests' names, a forced algorithm, and nodes that are too few."""
    header = (*COLLECTIVES, "nodes", "algorithm")
    rows = [
        ["h100-8xndr", "all_gather", "nccl", 10, 2**30, 100, 10, "default"],
        ["h100-8xndr", "sendrecv", "nccl", 80, 2**30, 100, 10, "default"],
        ["dgx-h100-node", "alltoall", "nccl", 8, 2**20, 100, "", ""],
        ["h100-8xndr", "all_reduce", "nccl", 16, 2**30, 100, 2, "tree"],
        ["h100-8xndr", "all_reduce", "nccl", 80, 2**30, 100, 9, "default"],
    ]
    got = validate_file(table(tmp_path, header, rows))
    machine = load_machine("dgx-h100")
    nccl = machine.libraries["nccl"]
    expected = [
        collective_cost(machine, nccl, "all_gather", 2.0**30, Placement(((0,),) * 10, (0,) * 10)),
        collective_cost(machine, nccl, "send", 2.0**30, Placement(((0,),) * 2, (0,) * 2)),
        collective_cost(machine, nccl, "all_to_all", 2.0**20, Placement.contiguous(8, 8)),
    ]
    assert [row["predicted"] for row in got.rows] == [pytest.approx(1e6 * cost.seconds) for cost in expected]
    sizes = ("multi-node, from 64 MiB", "multi-node, from 64 MiB", "one node, below 4 MiB")
    assert [row["group"].partition(", ")[2] for row in got.rows] == list(sizes)
    assert sorted(got.skipped.values()) == [1, 1]
