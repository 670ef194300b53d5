"""What examples/runs ships as simulated is what its jobs give: `python tools/example_runs.py` makes it anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiers import full
from twin.api import simulate
from twin.cli import main

RUNS = Path("examples/runs")
EVERY_RANK = "gpt-320b-frontier-every-rank"
FROM_THE_TEST_BED = "testbed"
"""Predictions of the day of the measurements beside them, which were made before these: they stay as they were."""
NEAR = 1e-6


def simulated() -> list[str]:
    """Runs that a job was simulated for; a new one is held too."""
    places = (path.parent.relative_to(RUNS) for path in RUNS.rglob("manifest.json"))
    return sorted(str(place) for place in places if place.parts[0] != FROM_THE_TEST_BED)


def read(name: str) -> Any:
    return json.loads((RUNS / name).read_text(encoding="utf-8"))


def assert_alike(shown: Any, fresh: Any) -> None:
    for keys in (("step_seconds",), ("energy_joules",), ("memory", "per_rank_bytes")):
        then, now = shown, fresh
        for key in keys:
            then, now = then[key], now[key]
        assert now == pytest.approx(then, rel=NEAR), f"{keys[-1]} is stale; run tools/example_runs.py"


@pytest.mark.parametrize("name", full(simulated(), EVERY_RANK))
def test_a_shipped_run_is_what_its_job_gives(name):
    shown = read(f"{name}/manifest.json")
    assert shown["kind"] == "predicted"
    fresh = simulate(RUNS / name / "job.yaml", engine="ranks" if name == EVERY_RANK else "folded")
    assert_alike(shown["figures"], fresh.as_json)


def test_the_shipped_search_found_what_its_best_job_gives():
    assert_alike(read("gpt-5b-search/ranking.json")["best"], simulate(RUNS / "gpt-5b-search/best.yaml").as_json)


def test_the_smallest_point_of_the_shipped_study_is_what_it_gives(tmp_path, capsys):
    asked = read("weak-scaling/study.json")["asked"]
    points = [json.loads(line) for line in (RUNS / "weak-scaling/points.jsonl").read_text("utf-8").splitlines()]
    (shown,) = (point["figures"] for point in points if point["number"] == 1)
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(asked | {"points": asked["points"][:1]}))
    with pytest.raises(SystemExit, match="0"):
        main(["study", str(tmp_path / "first.yaml"), "--out", str(tmp_path / "first"), "--json"])
    (fresh,) = json.loads(capsys.readouterr().out)["points"]
    for key in ("step_seconds", "energy_joules", "memory_per_rank_bytes"):
        assert fresh[key] == pytest.approx(shown[key], rel=NEAR), f"{key} is stale; run tools/example_runs.py"
