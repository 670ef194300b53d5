"""Copies to the host and back, its updates, and what its drives do: recorded as the twin generates them, op by op."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from runtime.recorder import record
from runtime.step import activations
from runtime.step.copies import Copy
from runtime.step.offloaded import OffloadedOptimizer
from tests.profiles import part
from tests.recorder.jobs import job
from tests.runtime.fsdp_tasks import describe
from tests.tiers import few
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.difference import difference
from twin.schedule.ops import OWN_STREAMS, Start
from twin.schedule.recording import read_recording, write_recording
from twin.strategies import generated

SMALL = {"sub_group_elements": 4096}
OFFLOADS: dict[str, dict[str, Any]] = {
    "host": {"optimizer": SMALL},
    "disk": {"optimizer": {"to": "disk", **SMALL}},
    "on the device": {"optimizer": {"stride": 1, **SMALL}},
    "interleaved": {"optimizer": {"stride": 2, **SMALL}},
    "interleaved, disk": {"optimizer": {"to": "disk", "stride": 3, **SMALL}},
    "activations": {"activations": "host"},
    "both": {"optimizer": SMALL, "activations": "disk"},
    "both, interleaved": {"optimizer": {"stride": 2, **SMALL}, "activations": "host"},
}
GRIDS: list[dict[str, int]] = [{"data": 1}, {"data": 2}, {"z": 2}, {"y": 2, "x": 2}, {"data": 2, "z": 2}]
MODEL = {"layers": 4, "hidden": 48, "heads": 12, "sequence": 16, "vocabulary": 96}
MACHINE = "rtx-4090-ssd"
OPTIONS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp32": {"precision": "fp32"},
    "three micro-steps": {"per_rank": 3},
    "overlapped": {"data_reduction": {"mode": "overlapped", "bucket": "1 KiB"}},
    "blocks": {"gather_unit": "block", "overlap": {"across_blocks": True}},
    "some recomputed": {"recompute_layers": 2, "clip_gradients": False},
    "tied": {"model": {**MODEL, "tied_embeddings": True}},
    "adapters": {"lora": {"rank": 4}},
}
CASES = list(itertools.product(GRIDS, OFFLOADS, OPTIONS))
CUT = list(itertools.product([{"weights": 1}, {"weights": 4}, {"data": 2, "weights": 2}], OFFLOADS, ("bf16", "fp32")))


def four_d(grid: dict[str, int], offload: dict[str, Any], **options: Any) -> Any:
    return job(
        grid,
        **{
            "model": MODEL,
            "machine": MACHINE,
            "recompute": True,
            "offload": {**offload, "directory": "/nowhere"},
            **options,
        },
    )


def some(cases: list[Any], every: int) -> Any:
    """Let `make test` run every so many."""
    return few(cases, *cases[::every])


@pytest.mark.parametrize(("grid", "where", "name"), some(CASES, 83), ids=str)
def test_four_d(grid: dict[str, int], where: str, name: str) -> None:
    described = four_d(grid, OFFLOADS[where], **OPTIONS[name])
    for rank in part(sorted({0, described.ranks - 1}), 1):
        assert not (found := difference(record(described, rank).schedule, generated(described, rank))), found


@pytest.mark.parametrize("mode", ["sharded", "sharded_overlapped"])
@pytest.mark.parametrize("where", ["host", "interleaved"])
def test_a_part_of_states_that_replicas_share(where: str, mode: str) -> None:
    """The first replica's, in whose part all weights decay; others are cut where decay ends."""
    described = four_d({"data": 2, "z": 2}, OFFLOADS[where], data_reduction={"mode": mode})
    assert not (found := difference(record(described, 0).schedule, generated(described, 0))), found


@pytest.mark.parametrize(("grid", "where", "precision"), some(CUT, 17), ids=str)
def test_fsdp(grid: dict[str, int], where: str, precision: str) -> None:
    offload = {**OFFLOADS[where], "directory": "/nowhere"}
    described = describe(grid, offload=offload, recompute=True, precision=precision, machine=MACHINE)
    for rank in part(sorted({0, described.ranks - 1}), 1):
        assert not (found := difference(record(described, rank).schedule, generated(described, rank))), found


def test_on_a_cpu_nothing_moves() -> None:
    described = four_d({"z": 2}, OFFLOADS["both, interleaved"], machine="laptop")
    recorded = record(described, 1).schedule
    assert not (found := difference(recorded, generated(described, 1))), found
    assert not [op for op, _ in recorded.flat() if isinstance(op, Start) and op.communicator in OWN_STREAMS]


def test_a_recording_is_read_and_simulated_as_what_is_generated(tmp_path: Path) -> None:
    described = four_d({"z": 2}, OFFLOADS["both, interleaved"])
    write_recording(tmp_path / "a.json", record(described, 1))
    recorded = read_recording(tmp_path / "a.json").schedule
    seconds = simulate(described, schedule=recorded).step_seconds
    # kernels of what memory bounds are counted in the one and estimated in the other
    assert seconds == pytest.approx(simulate(described).step_seconds, rel=0.05)


def test_a_wait_that_the_runtime_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    described = four_d({"data": 1}, OFFLOADS["activations"])
    wait = Copy.wait

    def forgetting(copy: Copy) -> None:
        if copy.op is None or not copy.op.name.endswith("block0/input_up"):
            wait(copy)

    monkeypatch.setattr(Copy, "wait", forgetting)
    with pytest.raises(DescriptionError, match=r"recompute/block0/input_up: is started and never waited for"):
        record(described)


def test_copies_that_come_later_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    described = four_d({"data": 1}, OFFLOADS["activations"])
    monkeypatch.setattr(activations.ActivationTier, "begin", lambda _self: None)
    assert "recompute/block2/input_up" in difference(record(described).schedule, generated(described))


def test_bytes_that_are_not_the_states_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    described = four_d({"data": 1}, OFFLOADS["interleaved"])
    monkeypatch.setattr(OffloadedOptimizer, "_state_bytes", 8)
    assert "states_up" in difference(record(described).schedule, generated(described))
