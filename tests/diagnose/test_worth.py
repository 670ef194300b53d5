"""What mending a slow NIC is worth, where several stand side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.diagnose.observations import healthy, job_on
from twin.diagnose.finding import Finding
from twin.diagnose.worth import worth
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid

GRID = Grid(data=2, z=2, y=2, x=2)


@pytest.mark.parametrize(("beside", "gigabytes"), [(None, 50), (2, 25)])
def test_a_slow_one_of_several_nics_is_worth_what_their_set_lost(beside: int | None, gigabytes: int) -> None:
    """A set that has 3/4 of its rate left costs a job the same, whether it is one NIC or two of half the rate."""
    assumed = {"kind": "assumed", "source": "this test"}
    nic: dict[str, Any] = {"bandwidth": {"value": f"{gigabytes} GB/s", **assumed}}
    if beside is not None:
        nic["count"] = {"value": beside, **assumed}
    job, whole = (job_on(GRID, {"extends": "frontier", "nic": each}) for each in (nic, {}))
    step = simulate(job).step_seconds
    slow = whole.model_dump(mode="json", by_alias=True)
    slow["machine"]["nic"]["bandwidth"] = {"value": "50 GB/s", **assumed}
    slow["degraded"] = [{"node": 1, "nic": number, "rate": 0.75} for number in range(len(job.machine.nic.devices))]
    finding = Finding("link", 1.0, 4 / 3, 0.1, hosts=(1,))
    expected = 1 - step / simulate(load_job(slow)).step_seconds
    assert worth(finding, healthy(GRID, 8), job, step).saved_share == pytest.approx(expected)
    gone = worth(replace(finding, slowdown=3.0), healthy(GRID, 8), job, step).saved_share
    assert (gone is None) == (beside is not None), "of two, one that stands still leaves half"
