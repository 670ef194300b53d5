"""What calibration makes of collectives that were timed and counted on a machine whose constants are known."""

from __future__ import annotations

import pytest

from tests.calibrate.known_machine import ISSUE, measurements, read, with_collectives
from twin.calibrate import machine_from, network
from twin.calibrate.compute import Sharing
from twin.description.problems import DescriptionError

pytest.importorskip("scipy")


def test_collectives_come_out(exact):
    """On the machine as it is written, one group at work and all."""
    data, machine = exact
    gloo = machine.libraries["gloo"]
    for case, row in zip(network.cases(data, machine), data["collectives"], strict=True):
        assert network.seconds(case, gloo, machine) == pytest.approx(case.seconds, rel=0.05), case
        if row["busy_core_seconds"] is not None:
            assert network.used(case, gloo) + ISSUE == pytest.approx(row["busy_core_seconds"], rel=0.05), case
    assert gloo.host_work is not None
    assert gloo.host_work.threads == 2
    assert gloo.sources["PYTORCH"]


def test_collectives_counted_while_nothing_else_ran_are_refused():
    data = with_collectives(measurements())
    for row in data["collectives"]:
        row["core_seconds"] = row.pop("busy_core_seconds")
    with pytest.raises(DescriptionError, match=r"collectives.*measure these CPUs again"):
        machine_from(data)


def test_measurements_of_exchanges_that_went_another_way_are_refused():
    data = with_collectives(measurements())
    del data["exchanges"]
    with pytest.raises(DescriptionError, match=r"exchanges.*measure these CPUs again"):
        machine_from(data)


@pytest.mark.parametrize("inner", [1, 2], ids=["none is posted", "posted by pairs alone"])
def test_posting_that_nothing_tells_costs_what_others_do(inner):
    """Of two ranks on one host all exchanges are the library's; of one size a call is not told from its messages."""
    data = with_collectives(measurements())
    two = [row for row in data["collectives"] if row["size"] == 2 and row["inner"] == inner]
    work = read(machine_from({**data, "collectives": two})).libraries["gloo"].host_work
    assert work is not None
    assert work.call_seconds is not None
    assert (work.exchange_call_seconds, work.exchange_message_seconds) == (None, None)


@pytest.mark.parametrize("cores", [None, 2.0])
def test_what_sharing_cores_lengthens_is_no_interference(cores):
    """Eight ranks compute on two cores, and threads of a collective take turns with them."""
    wanted = 0.5  # of a core, by each member while it runs alone
    shared = Sharing(cores, "machine", 8)
    level = 1.0 if cores is None else cores / 16
    row = {
        "compute_seconds_alone": 1.0,
        "compute_seconds_beside": 1.2,
        "collective_seconds_alone": 2e-3,
        "core_seconds_beside": wanted * 2e-3,
        "collective_seconds_beside": 1.1 * 2e-3 * max(1.0, wanted / level),
    }
    compute, collective = network.beside_compute({"device_type": "cpu", "overlap": [row, row, row]}, shared)
    assert compute.value == pytest.approx(0.2)
    assert collective.value == pytest.approx(0.1)
