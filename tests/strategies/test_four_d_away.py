"""Weights of blocks beyond the device in 4D: what moves, when, how long it takes, what is left on the device."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.moved import moved, named
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.ops import Compute, Start, Wait
from twin.strategies import load_job

MODEL: dict[str, Any] = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024, "biases": False}
BLOCK = 12 * 512**2
"""Weights of a block's linears: qkv 3, projection 1, MLP 4 and 4 times h²."""
FREE_HOST = ("machine.device.host=0 us", "machine.device.collective_host=0 us")
GRIDS: list[dict[str, int]] = [{"data": 1}, {"z": 2}, {"z": 4}, {"y": 2}, {"z": 2, "x": 2}, {"data": 2, "z": 2}]
COPIES = {"host": ("to_device", "to_host"), "disk": ("disk_to_device", "device_to_disk")}


def described(grid: dict[str, int], offload: Any, overrides: Any = (), micro_steps: int = 1, **options: Any) -> Any:
    replicas = grid.get("data", 1) * grid.get("z", 1)
    raw = {
        "model": MODEL,
        "machine": "rtx-4090-ssd",
        "ranks": int(np.prod(list(grid.values()))),
        "grid": grid,
        "batch": {"sequences": replicas * micro_steps, "micro_sequences": 1},
        "offload": offload,
        **options,
    }
    return load_job(raw, overrides)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("unit", ["linear", "block"])
def test_a_rank_s_weights_come_twice_a_micro_step_and_leave_once_a_step(grid, tier, unit) -> None:
    job = described(grid, {"parameters": tier}, micro_steps=3, gather_unit=unit)
    parts = grid.get("z", 1) * grid.get("y", 1) * grid.get("x", 1)
    of_rank = 2 * 4 * BLOCK // parts
    found, (up, down) = moved(job), COPIES[tier]
    assert found[up] == 3 * 2 * of_rank
    assert found[down] == of_rank


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_kept_blocks_come_once(grid) -> None:
    job = described(grid, {"parameters": "host"}, cache_gathered_layers=1)
    parts = grid.get("z", 1) * grid.get("y", 1) * grid.get("x", 1)
    assert moved(job)["to_device"] == 2 * (2 * 4 - 1) * BLOCK // parts


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("to", ["host", "disk"])
@pytest.mark.parametrize("stride", [None, 1, 2])
def test_updated_weights_of_blocks_go_where_they_lie_and_no_others(precision, to, stride) -> None:
    """With the optimizer away too; without a stride the host rounds them where they are."""
    offload = {"optimizer": {"to": to, "stride": stride, "sub_group_elements": 1024**2}, "parameters": "disk"}
    job = described({"data": 1}, offload, precision=precision)
    wide = {"bf16": 2, "fp32": 4}[precision]
    blocks, total = 4 * BLOCK, job.model.parameters
    found = Counter[str]()
    device, back, moments = 0, 0, {"bf16": 12, "fp32": 8}[precision]
    for name, op in named(job):
        if isinstance(op, Start) and name.startswith("optimizer/"):
            found[op.kind] += round(op.bytes)
            if name.endswith("weights_up") and op.kind == "to_device":  # those that lie on drives come from there
                back += round(op.bytes)
        if name.startswith("optimizer/group") and name.endswith("adamw"):
            device += round(op.kernel.bytes) // (28 + (6 if precision == "bf16" else 0))
    host, states = total - device, moments * total
    assert device == {None: 0, 1: total}.get(stride, device)
    # what the host updates: gradients come, and weights that stay on the device go back, in fp32 come before
    staying = back // wide
    found["to_host"] -= 4 * host + (4 * staying if precision == "fp32" else 0)
    found["to_device"] -= back
    if stride is None:
        assert staying == total - blocks
    down, up = found["to_host"] + found["device_to_disk"], found["to_device"] + found["disk_to_device"]
    reads, writes = up + found["disk_read"], down + found["disk_write"]
    if to == "disk" or stride == 1:
        assert reads == states + (4 * blocks if precision == "fp32" else 0)
        assert writes == states + wide * blocks
    else:
        assert writes == moments * device + wide * blocks
    assert not found["cast_to_host"] + found["cast_to_device"]


def test_a_shard_has_come_before_its_all_gather_starts() -> None:
    job = described({"z": 4}, {"parameters": "host"})
    there: set[str] = set()
    gathers = 0
    for name, op in named(job):
        if isinstance(op, Wait) and name.endswith("weights_up"):
            there.add(name.removesuffix("weights_up"))
        if isinstance(op, Start) and op.kind == "all_gather" and "/block" in name:
            assert name.removesuffix("all_gather_z") in there
            gathers += 1
    assert gathers == 2 * 4 * 4


def test_the_next_one_is_on_its_way_while_one_is_used() -> None:
    """Before every product of a block one unit more has been asked for than was waited for, until the pass ends."""
    job = described({"data": 1}, {"parameters": "host"}, recompute=False)
    asked = waited = products = 0
    for name, op in named(job):
        asked += isinstance(op, Start) and name.endswith("weights_up")
        waited += isinstance(op, Wait) and name.endswith("weights_up")
        if isinstance(op, Compute) and re.search(r"block\d/.*gemm", name):
            products += 1
            assert waited == products
            assert asked == min(16, products + 1)


@pytest.mark.full
def test_an_endless_link_costs_nothing() -> None:
    overrides = (*FREE_HOST, "machine.host_link.bandwidth=1000000 TB/s", "machine.host_link.latency=0 us")
    overrides += ("machine.host.memory_bandwidth=1000000 TB/s",)
    for grid in GRIDS:
        plain, job = (described(grid, o, overrides, micro_steps=2) for o in (None, {"parameters": "host"}))
        assert simulate(job).step_seconds == pytest.approx(simulate(plain).step_seconds, rel=1e-6)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_slow_link_s_time_is_its_bytes(grid) -> None:
    """It is at work from the first op of each pass to the last but one; what is computed meanwhile hides behind it."""
    rate = 1e6
    overrides = (*FREE_HOST, "machine.host_link.bandwidth=1 MB/s", "machine.host_link.latency=0 us")
    plain, job = (described(grid, o, overrides, micro_steps=2) for o in (None, {"parameters": "host"}))
    parts = grid.get("z", 1) * grid.get("y", 1) * grid.get("x", 1)
    least = (2 * 2 + 1) * 2 * 4 * BLOCK / parts / rate
    assert least <= simulate(job).step_seconds * (1 + 1e-12)
    assert simulate(job).step_seconds <= least + simulate(plain).step_seconds


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("recompute", [True, False])
def test_faster_links_are_never_slower(grid, recompute) -> None:
    rates = ("1 GB/s", "4 GB/s", "16 GB/s", "64 GB/s", "256 GB/s")
    steps = [
        simulate(
            described(grid, {"parameters": "host"}, (f"machine.host_link.bandwidth={rate}",), recompute=recompute)
        ).step_seconds
        for rate in rates
    ]
    assert steps == sorted(steps, reverse=True)


OFFLOADS = st.fixed_dictionaries(
    {
        "parameters": st.sampled_from(["host", "disk"]),
        "activations": st.sampled_from([None, "host", "disk"]),
        "optimizer": st.none()
        | st.fixed_dictionaries(
            {
                "to": st.sampled_from(["host", "disk"]),
                "stride": st.sampled_from([None, 1, 2]),
                "sub_group_elements": st.sampled_from([300_000, 2_000_000]),
            }
        ),
    }
)


@examples(0.4)
@given(OFFLOADS, st.sampled_from(GRIDS), st.integers(1, 3), st.booleans(), st.sampled_from(["linear", "block"]))
def test_engines_agree(offload: Any, grid: dict[str, int], micro_steps: int, straggler: bool, unit: str) -> None:
    options = {"stragglers": [{"rank": 0, "slowdown": 1.3}]} if straggler else {}
    job = described(grid, offload, micro_steps=micro_steps, gather_unit=unit, **options)
    folded, every = simulate(job), simulate(job, engine="des")
    of_rank = folded.partition.rank_class
    np.testing.assert_allclose(folded.timeline.end[of_rank], every.timeline.end, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("options", [{}, {"recompute": False}, {"gather_unit": "block"}], ids=str)
def test_memory_by_tier_is_that_of_the_weights(grid, options) -> None:
    plain, job = (described(grid, o, **options) for o in (None, {"parameters": "host"}))
    here, beyond = memory_use(plain), memory_use(job)
    parts = grid.get("z", 1) * grid.get("y", 1) * grid.get("x", 1)
    away = 2 * 4 * BLOCK / parts
    of_node = away * min(job.ranks, job.machine.devices_per_node)
    assert beyond.tiers["host"].by_category == {"weights": of_node}
    assert beyond.tiers["host"].node_bytes == of_node
    for category in here.by_category:
        if category != "weights":
            assert beyond.by_category[category] == here.by_category[category]
    most = here.by_category["weights"] - away + 2 * at_once(job)
    assert beyond.by_category["weights"] == pytest.approx(most, rel=1e-12)


def at_once(job: Any) -> int:
    """Most elements of blocks' weights that are on the device at once, by walking the schedule.

    One is there from when it starts to come until it is gathered; without z, until the last product that reads it.
    """
    cut = job.concrete_grid.z > 1
    ops = named(job)
    last: dict[str, int] = {}
    for index, (name, op) in enumerate(ops):
        if match := re.match(r"(micro\d)/(fwd|recompute|bwd)/(block\d/\w+)/", name):
            ends = isinstance(op, Wait) and name.endswith("all_gather_z") if cut else isinstance(op, Compute)
            if ends:
                phase = "fwd" if match[2] == "fwd" else "backward"
                block, unit = match[3].split("/")
                unit = "weights" if job.gather_unit == "block" else unit
                last[f"{match[1]}/{phase}/{block}/{unit}"] = index
    gone = {index: key for key, index in last.items()}
    held: dict[str, float] = {}
    most = 0.0
    for index, (name, op) in enumerate(ops):
        if isinstance(op, Start) and name.endswith("weights_up"):
            micro, phase, block, unit, _ = name.split("/")
            held[f"{micro}/{'fwd' if phase == 'fwd' else 'backward'}/{block}/{unit}"] = op.bytes
            most = max(most, sum(held.values()))
        if index in gone:
            held.pop(gone[index], None)
    return round(most / 2)


@pytest.mark.parametrize(
    ("offload", "options", "message"),
    [
        ({"parameters": "host"}, {"overlap": {"halves": True}, "grid": {"y": 2}}, "overlap.halves = True: uses"),
        ({"parameters": "host"}, {"data_reduction": {"mode": "sharded"}, "grid": {"data": 2}}, "use one_bucket"),
        ({"parameters": "host"}, {"precision": "fp32"}, "give offload.optimizer too"),
        (
            {"parameters": "disk"},
            {"communication_precision": {"gathers": "fp32"}, "grid": {"z": 2}},
            "brings rounded ones to the device",
        ),
        ({"parameters": "host"}, {"machine": "perlmutter"}, "does not describe the host of its nodes"),
        ({"parameters": "disk"}, {"machine": "alps"}, "does not describe drives of its nodes"),
    ],
)
def test_what_cannot_be_meant_is_refused(offload: Any, options: Any, message: str) -> None:
    grid = options.pop("grid", {"data": 1})
    with pytest.raises(DescriptionError, match=re.escape(message)):
        described(grid, offload, batch={"sequences": 4, "micro_sequences": 2}, **options)


def test_frozen_weights_come_and_never_leave() -> None:
    job = described({"z": 2}, {"parameters": "host"}, lora={"rank": 8}, precision="fp32")
    found = moved(job)
    assert found["to_device"] == 2 * 4 * 4 * BLOCK // 2
    assert found["to_host"] == 0
