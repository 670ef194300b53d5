"""The measured steps of the test bed, kept as data, are still predicted as well.

`data/` holds one whole run of `make validate-testbed`: the calibrated machine and the report. The steps were predicted
before they were measured then; here the model must not have become worse since.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.testbed.report import spearman
from tests.testbed.scenarios import SCENARIOS, grids
from tests.testbed.validate import machine_of
from twin.engine.simulate import simulate
from twin.strategies import load_job

DATA = Path(__file__).parent / "data"
RANKS = 8
REACHED = 0.88
"""Rank correlation in every scenario of that run. Wanted are 0.95, which one of the four reached: gathers over z
beside compute on shared cores are predicted too fast, and many grids lie within 5 % of each other."""


def measured(scenario: str) -> dict[str, float]:
    """Seconds of every grid."""
    report: dict[str, Any] = json.loads((DATA / "report.json").read_text(encoding="utf-8"))
    found = next(each for each in report["scenarios"] if each["name"] == scenario)
    return {row["grid"]: row["measured_seconds"] for row in found["rows"]}


def check(name: str) -> None:
    scenario = next(each for each in SCENARIOS if each.name == name)
    machine = machine_of(scenario, DATA / "testbed.yaml")
    seen = measured(name)
    assert len(seen) == 20
    predicted = {
        "x".join(map(str, grid.sizes)): simulate(load_job(scenario.job(grid, machine))).step_seconds
        for grid in grids(RANKS)
    }
    errors = [abs(predicted[grid] / seconds - 1) for grid, seconds in seen.items()]
    assert np.mean(errors) <= 0.10
    assert spearman([predicted[g] for g in seen], list(seen.values())) >= REACHED
    best = min(predicted, key=lambda grid: predicted[grid])
    assert best in sorted(seen, key=lambda grid: seen[grid])[:3]


def test_every_grid_is_predicted() -> None:
    check("base")


@pytest.mark.slow
@pytest.mark.parametrize("name", [s.name for s in SCENARIOS if s.name != "base"])
def test_every_grid_of_another_job_or_network_is_predicted(name) -> None:
    check(name)
