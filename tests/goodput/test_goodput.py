"""Goodput of long runs: against closed forms, books that balance, and a published run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.test_cli import Cli
from tests.tiers import full
from twin.description.load import load_machine
from twin.goodput.closed_form import daly, goodput, young
from twin.goodput.long_run import LongRun, plan_of, state_bytes_of
from twin.goodput.predict import best_interval, predict
from twin.goodput.run import Policy, run
from twin.strategies import load_job, strategy_of
from twin.strategies.sizes import FP32_BYTES, OPTIMIZER_BYTES

DAY = 86400.0
PLAN = LongRun(
    step_seconds=10.0,
    nodes=2048,
    host_failures_per_second=1 / 11136.0,
    job_failures_per_second=0.0,
    repair_seconds=DAY,
    restart_seconds=300.0,
    state_bytes=1e12,
    write_seconds=60.0,
    read_seconds=0.0,
    copy_seconds=1.0,
    neighbour_seconds=1.0,
)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    path = tmp_path / "job.yaml"
    described = {
        "model": "gpt-20b",
        "machine": "frontier",
        "ranks": 2048,
        "grid": {"data": 32, "z": 64},
        "batch": {"sequences": 8192, "micro_sequences": 4},
    }
    path.write_text(yaml.safe_dump(described), encoding="utf-8")
    return Cli(capsys, path)


def test_a_copy_at_a_neighbour_needs_one(cli: Cli) -> None:
    """The last node takes its memory with it when it fails."""
    small = ("--set=ranks=8", "--set=grid={data: 1, z: 8}", "--set=batch.sequences=64")
    out, err = cli("goodput", cli.job, "--seeds=2", "--mode=memory", *small, code=2)
    assert out == ""
    assert "--mode = 'memory'" in err
    assert "all ranks are on one; use async" in err


@pytest.mark.parametrize("interval", [200.0, 1098.0, 6000.0])
def test_synchronous_checkpoints_give_daly_s_expected_time(interval: float) -> None:
    runs = [run(PLAN, Policy("sync", interval), 200 * DAY, seed).goodput for seed in range(30)]
    expected = goodput(interval, 60.0, 300.0, PLAN.between_seconds)
    assert np.mean(runs) == pytest.approx(expected, abs=4 * np.std(runs) / np.sqrt(len(runs)) + 1e-4)


@pytest.mark.parametrize(
    ("write", "between"), full([(60.0, 11136.0), (10.0, 40000.0), (120.0, 90000.0)], (60.0, 11136.0), (10.0, 40000.0))
)
def test_the_best_interval_is_young_s_and_daly_s(write: float, between: float) -> None:
    """Within 5 %, where their assumptions hold: writing is short beside the time between failures."""
    plan = replace(PLAN, write_seconds=write, host_failures_per_second=1 / between, step_seconds=1.0)
    _, best = best_interval(plan, Policy("sync", 0.0), 300 * DAY, seeds=16)
    assert best == pytest.approx(daly(write, between), rel=0.05)
    assert best == pytest.approx(young(write, between), rel=0.10)


def test_daly_s_interval_is_where_the_closed_form_is_highest() -> None:
    tried = np.geomspace(100.0, 10_000.0, 4000)
    shares = [goodput(float(i), 60.0, 300.0, 11136.0) for i in tried]
    assert tried[int(np.argmax(shares))] == pytest.approx(daly(60.0, 11136.0), rel=0.01)


@given(
    mode=st.sampled_from(["sync", "async", "memory"]),
    interval=st.floats(5.0, 1e5),
    every=st.floats(1.0, 1e4),
    spares=st.one_of(st.none(), st.integers(0, 3)),
    hosts=st.floats(0.0, 1e-3),
    jobs=st.floats(0.0, 1e-3),
    write=st.floats(0.1, 2000.0),
    seed=st.integers(0, 50),
)
@examples(1.5, derandomize=True)
def test_every_second_is_booked_once(mode, interval, every, spares, hosts, jobs, write, seed) -> None:
    plan = replace(PLAN, host_failures_per_second=hosts, job_failures_per_second=jobs, write_seconds=write)
    found = run(plan, Policy(mode, interval, max(interval, every), spares), 3 * DAY, seed)
    parts = (found.useful, found.lost, found.saving, found.restarting, found.waiting)
    assert all(part >= -1e-6 for part in parts)
    assert sum(parts) == pytest.approx(found.total, rel=1e-9)


def test_without_failures_only_checkpoints_cost() -> None:
    plan = replace(PLAN, host_failures_per_second=0.0)
    found = run(plan, Policy("sync", 940.0), 10 * DAY, 0)
    assert found.stops == found.lost == found.restarting == 0
    assert found.goodput == pytest.approx(0.94, abs=1e-3)


def test_saving_better_loses_less() -> None:
    """The same failures: waiting for a copy only, and copies in a neighbour's memory, each help."""
    plan = replace(PLAN, host_failures_per_second=1 / 4000.0)
    shares = {
        mode: np.mean([run(plan, Policy(mode, 600.0, 100.0), 60 * DAY, s).goodput for s in range(10)])
        for mode in ("sync", "async", "memory")
    }
    assert shares["sync"] < shares["async"] < shares["memory"]


def test_too_few_spares_mean_waiting() -> None:
    plan = replace(PLAN, host_failures_per_second=1 / 20000.0)
    few, enough = (run(plan, Policy("sync", 1000.0, spares=n), 60 * DAY, 1) for n in (0, 50))
    assert few.waiting > 0.5 * few.total
    assert enough.waiting == 0.0


@pytest.mark.full
def test_llama_3_used_more_than_nine_tenths_of_its_time() -> None:
    """16,384 H100, 54 days, 419 stops (arXiv 2407.21783), from its rates of failure and its storage alone."""
    model = {"layers": 126, "hidden": 16384, "heads": 128, "sequence": 8192, "vocabulary": 128256}
    job = load_job(
        {
            "model": model,
            "machine": {
                "extends": "dgx-h100",
                "nodes": {"value": 2048, "kind": "measured", "source": "LLAMA3: the cluster"},
            },
            "ranks": 16384,
            "grid": {"data": 128, "z": 16, "y": 8},
            "data_reduction": {"mode": "sharded"},  # states are divided among replicas, as with its FSDP
            "batch": {"sequences": 2048, "micro_sequences": 1},
        }
    )
    plan = plan_of(job, 10.0, state_bytes=12 * 405e9)
    found = predict(plan, Policy("sync", 0.0), 54 * DAY, seeds=40).figures()
    assert found["stops"]["mean"] == pytest.approx(419, rel=0.03)
    assert 0.90 < found["goodput"]["p50"] < 0.96


def test_a_checkpoint_holds_twelve_bytes_a_parameter() -> None:
    job = load_job({"model": "gpt-20b", "machine": "frontier", "ranks": 8, "batch": {"sequences": 8}})
    assert state_bytes_of(job) == 12 * job.model.parameters


@pytest.mark.full
def test_the_command_answers_and_refuses(cli: Cli) -> None:
    got = cli.json("goodput", cli.job, "--days=20", "--seeds=10")
    assert got["interval_chosen"] is True
    assert sum(got["parts"].values()) == pytest.approx(1.0)
    assert got["goodput"]["p10"] <= got["goodput"]["p50"] <= got["goodput"]["p90"]
    again = cli.json("goodput", cli.job, "--days=20", "--seeds=10")
    assert json.dumps(got) == json.dumps(again)
    said = cli("goodput", cli.job, "--seeds=5", "--interval=20min")[0]
    assert "useful, the median over 5 seeds" in said
    assert "mean over seeds" in said
    assert "--interval" in cli.refused("goodput", cli.job, "--interval=3 parsecs")
    for wrong in ("--interval=30", "--interval=1 ms", "--disk-interval=1h", "--interval=30."):
        assert wrong.partition("=")[0] in cli.refused("goodput", cli.job, wrong)
    assert "between" in cli.refused("goodput", cli.job, "--set=machine.reliability.device.between=0 s")
    assert "machine.reliability" in cli.refused("goodput", cli.job, "--set=machine.reliability.device.between=10 min")
    never = cli.json("goodput", cli.job, "--interval=300 d", "--seeds=2")
    assert never["closed_form_goodput"] < 1e-9
    assert "cannot run" in cli("goodput", cli.job, "--seeds=2", "--set=machine.device.memory=9 GB")[0]
    assert "--state" in cli.refused("goodput", cli.job, "--state=-1 GB")
    small = [f"--set={key}" for key in ("machine=laptop", "ranks=1", "grid.data=1", "grid.z=1", "batch.sequences=4")]
    assert "machine.reliability" in cli.refused("goodput", cli.job, *small)


def test_machines_say_where_their_rates_come_from() -> None:
    for name in ("frontier", "perlmutter", "alps", "dgx-h100", "dgx-a100"):
        known = load_machine(name).reliability
        assert known is not None
        assert "LLAMA3" in known.device.between_seconds.source


@pytest.mark.parametrize(
    "keys",
    [
        {"strategy": "four_d", "grid": {"data": 4, "z": 4}},
        {"strategy": "four_d", "grid": {"data": 4, "z": 2, "y": 2}, "data_reduction": {"mode": "sharded"}},
        {"strategy": "fsdp", "grid": {"data": 4, "weights": 4}},
        {"strategy": "fsdp", "flavour": "deepspeed", "grid": {"data": 2, "optimizer": 2, "gradients": 2, "weights": 2}},
        {"strategy": "ddp", "grid": {"data": 16}},
        {"strategy": "megatron", "grid": {"data": 2, "context": 2, "pipeline": 2, "tensor": 2}},
        {"strategy": "megatron", "grid": {"data": 4, "pipeline": 2, "tensor": 2}, "distributed_optimizer": True},
        {"strategy": "megatron", "grid": {"data": 2, "pipeline": 4, "tensor": 2}, "schedule": "dualpipe"},
        {"strategy": "megatron", "flavour": "torch", "grid": {"data": 4, "pipeline": 2, "tensor": 2}},
        {"strategy": "megatron", "flavour": "torch", "weight_shards": 2, "grid": {"data": 8, "tensor": 2}},
    ],
    ids=str,
)
def test_a_restart_reads_as_much_as_ranks_hold(keys: dict[str, Any]) -> None:
    """Replicas write parts of a checkpoint, and read all that they hold: what memory of optimizers counts."""
    job = load_job(
        {
            "model": "gpt-5b",
            "machine": "dgx-h100",
            "ranks": 16,
            "batch": {"sequences": 128, "micro_sequences": 1},
            **keys,
        }
    )
    strategy = strategy_of(job)
    held = sum(strategy.memory(job, role)["optimizer"] * len(role.ranks) for role in strategy.roles(job))
    if keys.get("flavour") == "torch" or (keys["strategy"] == "fsdp" and "flavour" not in keys):
        held *= OPTIMIZER_BYTES / (OPTIMIZER_BYTES - FP32_BYTES)  # whose weights are the fp32 ones
    plan = plan_of(job, 10.0)
    assert plan.copies == pytest.approx(held / plan.state_bytes, rel=0.13)  # tables and norms that ranks repeat
    assert job.machine.reliability is not None
    storage = job.machine.reliability.storage
    rate = min(float(storage.read_bytes_per_second), plan.nodes * float(storage.node_bytes_per_second))
    assert plan.read_seconds == pytest.approx(held / rate, rel=0.13)


def test_a_restart_of_lora_reads_the_frozen_weights_too() -> None:
    """The checkpoint has adapters alone; where it lies in memory, the weights come from files as well."""
    keys = {
        "model": "llama-3-8b",
        "machine": "dgx-h100",
        "ranks": 16,
        "grid": {"z": 16},
        "batch": {"sequences": 16, "micro_sequences": 1},
    }
    job = load_job({**keys, "lora": {"rank": 8, "targets": ["q"]}})
    plan, whole = plan_of(job, 10.0), plan_of(load_job(keys), 10.0)
    assert job.machine.reliability is not None
    storage = job.machine.reliability.storage
    rate = min(float(storage.read_bytes_per_second), 2 * float(storage.node_bytes_per_second))
    assert plan.read_seconds == pytest.approx((plan.state_bytes + 2 * job.model.parameters) / rate)
    assert plan.memory_read_seconds > plan.frozen_seconds == pytest.approx(2 * job.model.parameters / rate)
    assert whole.frozen_seconds == 0.0
    assert plan.write_seconds < whole.write_seconds / 100
    divided = {
        "data_reduction": {"mode": "sharded"},
        "grid": {"data": 2, "z": 8},
        "lora": {"rank": 8, "targets": ["q"]},
    }
    both = plan_of(load_job({**keys, **divided}), 10.0)
    assert both.frozen_seconds == pytest.approx(2 * plan.frozen_seconds), "whole on each replica"
