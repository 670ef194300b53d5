"""Compute that is slowed by long collectives beside it is no culprit: it is evidence of what makes them long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.diagnose.observations import COMPUTE, TRANSFER, expectation, healthy, job_on, members, with_slow_ranks
from tests.tiers import few
from twin.description.parameter import Parameter
from twin.diagnose.diagnose import Diagnosis, diagnose
from twin.diagnose.expected import expected
from twin.diagnose.interference import allowance, interference_of
from twin.diagnose.observed import Observed, nodes_of
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid

JOB: dict[str, Any] = {
    "model": "gpt-5b",
    "machine": "dgx-h100",
    "ranks": 64,
    "grid": {"data": 4, "z": 16},
    "batch": {"sequences": 128, "micro_sequences": 2},
    "slowest_device": False,
}
SPREAD = Grid(data=4, z=8, y=1, x=1)
"""On 32 hosts."""


def diagnosed(**faults: Any) -> Diagnosis:
    """Simulate a step with faults, and diagnose what its trace would say."""
    well = load_job(JOB)
    step = expected(simulate(load_job({**JOB, **faults}), max_classes=MANY_CLASSES))
    observed = Observed(
        well.concrete_grid,
        nodes_of(well),
        (),
        np.array([step.step_seconds]),
        step.compute[None],
        {axis: took[None] for axis, took in step.transfer.items()},
    )
    return diagnose(observed, well, expected(simulate(well, max_classes=MANY_CLASSES)))


@pytest.mark.parametrize("rate", few([0.5, 0.3, 0.25, 0.2, 0.15, 0.1, 0.03], 0.3, 0.1))
def test_a_nic_is_named_however_slow_it_is(rate: float) -> None:
    (found,) = diagnosed(degraded=[{"node": 3, "nic": 2, "rate": rate}]).findings
    assert (found.kind, found.hosts, found.ranks) == ("link", (3,), (26,))


@pytest.mark.full
def test_a_device_that_is_slower_than_collectives_make_it_is_named_beside_the_link() -> None:
    found = diagnosed(degraded=[{"node": 3, "nic": 2, "rate": 0.2}], stragglers=[{"rank": 40, "slowdown": 1.5}])
    assert {(each.kind, each.hosts, each.ranks) for each in found.findings} == {
        ("link", (3,), (26,)),
        ("device", (5,), (40,)),
    }


def test_collectives_explain_compute_by_as_much_as_they_are_longer() -> None:
    observed = healthy(SPREAD, 1, noise=0.0)
    slow = members(SPREAD, 0, "z")
    transfer = {axis: took.copy() for axis, took in observed.transfer.items()}
    transfer["z"][:, slow] *= 5.0
    allowed = allowance(replace(observed, transfer=transfer), expectation(observed), 0.25)
    assert allowed[slow].tolist() == pytest.approx([4 * TRANSFER * 0.2] * len(slow))
    assert not np.delete(allowed, slow).any()


@pytest.mark.parametrize("seed", range(8))
def test_noise_explains_nothing(seed: int) -> None:
    observed = healthy(SPREAD, 1, noise=0.1, seed=seed)
    assert not allowance(observed, expectation(observed), 0.4).any()


@pytest.mark.parametrize(("factor", "named"), [(1.1, False), (1.6, True)])
def test_without_a_link_that_explains_them_it_is_said(factor: float, named: bool) -> None:
    """A group over eight hosts has slow collectives: whose link it is cannot be told, and its ranks are healthy."""
    observed = healthy(SPREAD, 1, noise=0.005)
    slow = members(SPREAD, 0, "z")
    transfer = {axis: took.copy() for axis, took in observed.transfer.items()}
    transfer["z"][:, slow] *= 5.0
    found = diagnose(
        with_slow_ranks(replace(observed, transfer=transfer), slow, factor), job_on(SPREAD), expectation(observed)
    )
    assert {rank for each in found.findings for rank in each.ranks} == (set(slow) if named else set())
    assert any("collectives beside it" in note for note in found.notes) != named
    assert COMPUTE * (factor - 1) > 0.02


def test_what_is_assumed_of_interference_may_be_as_much_as_was_seen_anywhere() -> None:
    slowdown = load_job(JOB).compute_slowdown
    assert slowdown.kind == "assumed"
    assert interference_of(slowdown) == 0.4 > slowdown
    assert interference_of(Parameter(0.45, "assumed", "USER")) == pytest.approx(0.765)
    assert interference_of(Parameter(0.2, "calibrated", "USER")) == 0.2
