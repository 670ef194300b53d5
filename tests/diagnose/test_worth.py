"""What mending culprits is worth: a slow NIC of several side by side, and several at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.diagnose.observations import healthy, job_on
from twin.diagnose.finding import Finding
from twin.diagnose.worth import saved_share, worth
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


def test_of_equal_stragglers_mending_one_saves_nothing():
    """What each of four is worth was multiplied, which explained three quarters of a step that lacked a third."""
    job = job_on(GRID)
    step = simulate(job).step_seconds
    slow = [Finding("device", 1.0, 2.0, step, ranks=(rank,)) for rank in (0, 1, 2, 3)]
    observed = healthy(GRID, 8)
    one = saved_share(slow[:1], observed, job, step)
    together = saved_share(slow, observed, job, step)
    faults = [{"rank": rank, "slowdown": 2.0} for rank in range(4)]
    made = simulate(load_job({**job.model_dump(mode="json", by_alias=True), "stragglers": faults})).step_seconds
    assert one is not None
    assert together == pytest.approx(1 - step / made)
    assert together < 1 - (1 - one) ** 4
    waiting = Finding("loading", 1.0, 2.0, float(np.median(observed.step_seconds)) / 4, ranks=(1,))
    assert saved_share([waiting], observed, job, step) == pytest.approx(0.25)
    assert saved_share([waiting, *slow], observed, job, step) == pytest.approx(1 - 0.75 * step / made)
    others = [replace(waiting, ranks=(rank,)) for rank in (2, 3, 5, 6)]
    assert saved_share([waiting, *others], observed, job, step) == pytest.approx(0.25), "they wait at once"
    nowhere = Finding("axis", 1.0, 2.0, 0.1, axis="z")
    assert saved_share([nowhere, *slow], observed, job, step) is None
    twice = [Finding("device", 1.0, 1.5, step, ranks=(0,)), *slow]
    assert saved_share(twice, observed, job, step) == together, "as slow as the worse of them says"
