"""The measured steps of the test bed, kept as data, are still predicted as well.

`data/` holds one run of every grid of 4D (`report.json`, on the machine `testbed.yaml`) and one of every strategy
(`strategies.json`, `strategies.yaml`). The steps were predicted before they were measured then; here the model must
not have become worse since.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.testbed import ahead, beyond
from tests.testbed.report import spearman
from tests.testbed.scenarios import SCENARIOS, Scenario, grids
from tests.testbed.strategies import STRATEGIES, WAYS
from tests.testbed.validate import machine_of
from twin.engine.simulate import simulate
from twin.strategies import load_job

DATA = Path(__file__).parent / "data"
RANKS = 8
REACHED = 0.88
"""Rank correlation in every scenario of that run. Wanted are 0.95, which one of the four reached: gathers over z
beside compute on shared cores are predicted too fast, and many grids lie within 5 % of each other."""

REACHED_BY_STRATEGIES = 0.95
"""Of all strategies together in that run; 0.967 then."""


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


def test_every_strategy_is_predicted() -> None:
    """Eight ways to cut each of three models: of all of them together, and the best of each model."""
    report: dict[str, Any] = json.loads((DATA / "strategies.json").read_text(encoding="utf-8"))
    pairs: list[tuple[float, float]] = []
    for scenario in STRATEGIES:
        found = next(each for each in report["scenarios"] if each["name"] == scenario.name)
        seen = {row["grid"]: row["measured_seconds"] for row in found["rows"]}
        assert set(seen) == set(WAYS)
        machine = machine_of(scenario, DATA / "strategies.yaml")
        predicted = {label: simulate(load_job(raw, [])).step_seconds for label, raw in scenario.jobs(RANKS, machine)}
        chosen = min(predicted, key=lambda label: predicted[label])
        assert seen[chosen] <= 1.05 * min(seen.values())
        pairs += [(predicted[label], seconds) for label, seconds in seen.items()]
    assert np.mean([abs(predicted / seconds - 1) for predicted, seconds in pairs]) <= 0.10
    assert spearman([predicted for predicted, _ in pairs], [seconds for _, seconds in pairs]) >= REACHED_BY_STRATEGIES


def rows_of(scenario: Scenario) -> list[dict[str, Any]]:
    """Steps beyond the published algorithm as they were measured, predicted anew."""
    report: dict[str, Any] = json.loads((DATA / "beyond.json").read_text(encoding="utf-8"))
    found = next(each for each in report["scenarios"] if each["name"] == scenario.name)
    machine = machine_of(scenario, DATA / "beyond.yaml")
    predicted = {label: simulate(load_job(raw, [])).step_seconds for label, raw in scenario.jobs(RANKS, machine)}
    assert len(found["rows"]) == len(predicted)
    return [row | {"predicted_seconds": predicted[row["grid"]]} for row in found["rows"]]


@pytest.mark.full
@pytest.mark.parametrize("scenario", beyond.SCENARIOS, ids=lambda each: each.name)
def test_what_goes_beyond_is_predicted(scenario: beyond.BeyondScenario) -> None:
    """Six grids of 4D, as published and beyond: steps, and how many times faster the second is."""
    rows = rows_of(scenario)
    assert len(rows) == 24
    errors = [abs(row["predicted_seconds"] / row["measured_seconds"] - 1) for row in rows]
    assert np.mean(errors) <= 0.10
    times = [[row[f"{which}_seconds"] for row in rows] for which in ("predicted", "measured")]
    assert spearman(*times) >= 0.95
    gains = scenario.gains(rows)
    assert np.mean([abs(said - seen) for _, said, seen in gains]) <= 0.06
    assert np.mean([seen for *_, seen in gains]) >= 1.15


def test_ways_to_sum_over_data_are_predicted() -> None:
    """ZeRO-1 beside the passes is the fastest of four ways, and by how much."""
    rows = {row["grid"]: row for row in rows_of(ahead.SCENARIO)}
    seen, said = ({way: row[f"{which}_seconds"] for way, row in rows.items()} for which in ("measured", "predicted"))
    assert min(seen, key=lambda way: seen[way]) == min(said, key=lambda way: said[way]) == "sharded_overlapped"
    assert np.mean([abs(said[way] / seen[way] - 1) for way in seen]) <= 0.08
    for other in ("sharded", "overlapped"):
        gains = [times[other] / times["sharded_overlapped"] for times in (seen, said)]
        assert abs(gains[0] - gains[1]) <= 0.05
