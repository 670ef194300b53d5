"""A search that varies what lies beyond the device's memory, and one whose best has an option without a usual word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiers import full
from twin.cli import main
from twin.cost.memory import memory_use
from twin.description.job import Job
from twin.description.offload import Offload, OptimizerOffload
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.search.across import search_across
from twin.search.estimate import estimate
from twin.search.over import MICRO
from twin.search.search import options_varied, search
from twin.strategies import load_job, offload_choices, strategy_of

LARGE = {"model": "gpt-20b", "machine": "4xh100", "ranks": 4, "batch": {"sequences": 16}}
"""Its states alone are 80 GB a device and more."""


def job(strategy: str, **keys: Any) -> Job:
    return load_job(LARGE | {"strategy": strategy, "grid": "auto"} | keys)


@pytest.mark.parametrize("strategy", full(["fsdp", "four_d"], "four_d"))
def test_offload_makes_a_model_trainable_and_the_best_is_that_of_all_ways(strategy: str) -> None:
    with pytest.raises(DescriptionError):
        search(job(strategy))
    found = search(job(strategy), over=frozenset({"offload"}))
    best = found.best.job
    assert isinstance(best.offload, Offload)  # type: ignore[attr-defined]
    tried = []
    for entry in found.entries:
        one = entry.candidate.job(job(strategy))
        if memory_use(one).per_rank_bytes <= memory_use(one).capacity_bytes and entry.figures is not None:
            tried.append(simulate(one).step_seconds)
    assert len(tried) > 1
    assert min(tried) == found.best.step_seconds
    assert "offload" in options_varied(found)


@pytest.mark.parametrize("strategy", ["fsdp", "four_d"])
def test_ways_keep_to_the_rules_and_are_read_as_they_are_written(strategy: str) -> None:
    opened = job(strategy, machine="rtx-4090-ssd", ranks=1)
    strategy_ = strategy_of(opened)
    ways = [
        way
        for way in offload_choices.choices(opened)
        if not strategy_.check(opened.model_copy(update={"offload": way}))
    ]
    assert ways[0] is None
    assert len(ways) == len(set(ways)) > 3
    assert {"disk", "host"} <= {tier for way in ways if way is not None for tier in way.tiers}
    for way in ways:
        raw = {"offload": offload_choices.written(way)} if way is not None else {}
        assert offload_choices.read(raw) == way
        settled = {"offload": {"activations": "host"}}
        offload_choices.settle(way, settled)
        assert (
            load_job(LARGE | settled | {"strategy": strategy, "machine": "rtx-4090-ssd", "ranks": 1})
        ).offload == way  # type: ignore[attr-defined]
    assert len({offload_choices.in_words(way) for way in ways}) == len(ways)


def test_where_hosts_are_not_described_there_is_nothing_to_vary() -> None:
    opened = job("four_d", machine="frontier", model="gpt-5b", ranks=8)
    assert offload_choices.choices(opened) == [None]


def test_without_drives_nothing_goes_to_them() -> None:
    ways = offload_choices.choices(job("four_d"))
    assert len(ways) > 3
    assert not any("disk" in way.tiers for way in ways if way is not None)


@pytest.mark.parametrize("strategy", ["fsdp", "four_d"])
def test_activations_leave_the_device_where_recomputation_is_varied_and_the_job_has_none(strategy: str) -> None:
    without = job(strategy, recompute=False)
    found = {
        (entry.candidate.job(without).recompute, str(getattr(entry.candidate.job(without).offload, "activations", "")))  # type: ignore[attr-defined]
        for entry in search(without, over=frozenset({"recompute", "offload"})).entries
    }
    assert {recompute for recompute, activations in found if activations == "host"} == {True}


@pytest.mark.full
def test_a_search_over_strategies_tries_to_make_room_where_nothing_fits_without() -> None:
    found = search_across(LARGE, ["four_d", "megatron"])
    assert found.best.best.job.offload is not None  # type: ignore[attr-defined]
    assert "no grid fits" in found.reasons["megatron"]
    counted = estimate(job("four_d"), over=found.best.over - {"offload"}, makes_room=True)
    assert counted.feasible == found.best.feasible
    small = search_across(LARGE | {"model": "gpt-5b"}, ["four_d"])
    assert all(entry.candidate.options.offload is None for entry in small.best.entries)  # type: ignore[attr-defined]


def test_a_directory_of_the_job_stays() -> None:
    own = Offload(optimizer=OptimizerOffload(to="disk"), directory="/scratch")
    opened = job("four_d", machine="rtx-4090-ssd", ranks=1).model_copy(update={"offload": own})
    others = offload_choices.choices(opened)
    assert {way.directory for way in others if way is not None} == {"/scratch"}


@pytest.mark.parametrize("raw", [{"offload": {"optimizer": {"to": "moon"}}}, {"offload": 3}])
def test_what_is_no_way_is_refused_by_name(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"options\.offload"):
        offload_choices.read(raw)


@pytest.mark.full
def test_an_option_that_only_the_best_has_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = {"model": "gpt-5b", "machine": "frontier", "ranks": 16, "batch": {"sequences": 64}}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["search", str(path), "--over", f"halves,{MICRO}", "--grid", "y=4", "--grid", "x=1"])
    assert not ended.value.code
    assert "two halves" in capsys.readouterr().out
