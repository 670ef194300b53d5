"""What the runtime holds between two steps, counted byte by byte, against what the twin says it needs."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from runtime.recorder.gpt import FAKE, LEARNING_RATE, batch_of
from runtime.recorder.world import fake_world
from runtime.step.tiers import Room
from runtime.strategies import ranks_of, recorded_on, trains
from tests.tiers import few
from twin.cost.memory import memory_use
from twin.description.job import Job
from twin.description.train import Adam
from twin.strategies import load_job, strategy_of

MODEL = {"layers": 3, "hidden": 256, "heads": 8, "sequence": 64, "vocabulary": 1000}
LLAMA = MODEL | {"activation": "swiglu", "positions": "rotary", "mlp_width": 704, "biases": False}
QWEN3 = LLAMA | {"norm": "rms", "kv_heads": 2, "head_width": 48, "qk_norm": True, "tied_embeddings": True}
LORA = {"rank": 24, "targets": ["q", "k", "v", "o", "up", "down"]}
SHARDED = {"data_reduction": {"mode": "sharded"}}
AHEAD = {"data_reduction": {"mode": "sharded_overlapped", "bucket": "1 MiB"}}
KEPT = ("weights", "gradients", "optimizer")
"""Categories of what stays from step to step."""
CASES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "one rank": ({"data": 1}, {}),
    "one rank, fp32": ({"data": 1}, {"precision": "fp32"}),
    "data": ({"data": 4}, {}),
    "z": ({"z": 4}, {}),
    "y": ({"y": 4}, {}),
    "x": ({"x": 4}, {}),
    "all axes": ({"data": 2, "z": 2, "y": 2, "x": 2}, {}),
    "all axes, swiglu": ({"data": 2, "z": 2, "y": 2, "x": 2}, {"model": LLAMA, "gather_unit": "block"}),
    "grouped heads, tied": ({"data": 2, "z": 2, "y": 2}, {"model": QWEN3}),
    "grouped heads, tied, sharded": ({"data": 4, "y": 2, "x": 2}, SHARDED | {"model": QWEN3}),
    "overlapped": ({"data": 4, "z": 2}, {"data_reduction": {"mode": "overlapped"}}),
    "sharded": ({"data": 4}, SHARDED),
    "sharded, fp32": ({"data": 4}, SHARDED | {"precision": "fp32"}),
    "sharded, all axes": ({"data": 3, "z": 2, "y": 2, "x": 2}, SHARDED),
    "sharded, not recomputed": ({"data": 8, "z": 2}, SHARDED | {"recompute": False}),
    "sharded, overlapped": ({"data": 4}, AHEAD),
    "sharded, overlapped, fp32": ({"data": 4}, AHEAD | {"precision": "fp32"}),
    "sharded, overlapped, all axes": ({"data": 3, "z": 2, "y": 2, "x": 2}, AHEAD),
    "sharded, overlapped, tied": ({"data": 4, "y": 2, "x": 2}, AHEAD | {"model": QWEN3}),
    "halves": (
        {"z": 2, "y": 2, "x": 2},
        {"overlap": {"halves": True, "across_blocks": True}, "recompute_layers": 1, "micro_sequences": 2},
    ),
    "products kept": ({"z": 2, "y": 2, "x": 2}, {"recompute_keeps": "products"}),
    "attention kept": ({"z": 2, "y": 2, "x": 2}, {"recompute_keeps": "attention", "attention": "flash"}),
    "flat": ({"z": 2, "y": 2, "x": 2}, {"tensor": "1d"}),
    "divided": ({"z": 2, "y": 2, "x": 2}, {"divide": {"attention": True, "mlp": True}}),
    "adapters": ({"data": 1}, {"lora": LORA}),
    "adapters, all axes": ({"data": 2, "z": 2, "y": 2, "x": 2}, {"lora": LORA}),
    "adapters, grouped heads, sharded": ({"data": 4, "y": 2}, SHARDED | {"model": QWEN3, "lora": {"rank": 64}}),
    "adapters, fp32": ({"z": 2, "y": 2}, {"lora": LORA, "precision": "fp32"}),
    "ddp": ({"data": 4}, {"strategy": "ddp", "recompute": False, "attention": "flash"}),
    "ddp, grouped heads": (
        {"data": 4},
        {"strategy": "ddp", "recompute": False, "model": {**QWEN3, "qk_norm": False, "tied_embeddings": False}},
    ),
    "fsdp": ({"weights": 4}, {"strategy": "fsdp"}),
    "fsdp, one rank": ({"weights": 1}, {"strategy": "fsdp"}),
    "fsdp, not recomputed, kept": (
        {"weights": 4},
        {"strategy": "fsdp", "recompute": False, "reshard_after_forward": False},
    ),
    "fsdp, replicas, grouped heads, tied": ({"data": 2, "weights": 8}, {"strategy": "fsdp", "model": QWEN3}),
}
OFFLOAD = {"optimizer": {"sub_group_elements": 100_000}}
ON_HOST: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "one rank": ({"data": 1}, {}),
    "one rank, fp32": ({"data": 1}, {"precision": "fp32"}),
    "all axes": ({"data": 2, "z": 2, "y": 2, "x": 2}, {}),
    "sharded": ({"data": 4}, SHARDED),
    "sharded, overlapped": ({"data": 4}, AHEAD),
    "fsdp": ({"weights": 4}, {"strategy": "fsdp"}),
    "fsdp, one rank": ({"weights": 1}, {"strategy": "fsdp"}),
}
TORCH = {"strategy": "megatron", "flavour": "torch"}
ZB_V = {"schedule": "zb_v", "chunks": 2}
STAGES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "tensor": ({"tensor": 4}, {}),
    "tensor, residual stream whole, fp32": ({"tensor": 4}, {"sequence_parallel": False, "precision": "fp32"}),
    "tensor, grouped heads": ({"tensor": 2}, {"model": QWEN3 | {"tied_embeddings": False}}),
    "data, tensor": ({"data": 4, "tensor": 2}, {"model": LLAMA}),
    "context, tensor": ({"context": 2, "tensor": 2}, {"model": LLAMA}),
    "context, data": ({"context": 2, "data": 2}, {"context_exchange": "all_gather"}),
    "gpipe, uneven": ({"pipeline": 3}, {"schedule": "gpipe", "stage_layers": [2, 1, 1]}),
    "1f1b": ({"pipeline": 4}, {}),
    "1f1b, tensor": ({"pipeline": 2, "tensor": 2}, {}),
    "interleaved": ({"pipeline": 2}, {"schedule": "interleaved", "chunks": 2}),
    "zb_v": ({"pipeline": 2}, ZB_V),
    "zb_v, data": ({"pipeline": 2, "data": 2}, ZB_V),
    "1f1b, data": ({"pipeline": 2, "data": 2}, {}),
    "1f1b, data, fp32": ({"pipeline": 2, "data": 2}, {"precision": "fp32"}),
    "1f1b, data, gradients as computed": ({"pipeline": 2, "data": 2}, {"gradient_precision": "compute"}),
}


def described(grid: dict[str, int], options: dict[str, Any]) -> Job:
    ranks = 1
    for size in grid.values():
        ranks *= size
    sequences = 2 * grid.get("data", 1) * grid.get("z", 1) * grid.get("weights", 1)
    raw: dict[str, Any] = {
        "model": MODEL,
        "machine": "frontier",
        "ranks": ranks,
        "grid": grid,
        "batch": {"sequences": sequences, "micro_sequences": options.get("micro_sequences", 1)},
    }
    return load_job(raw | {key: value for key, value in options.items() if key != "micro_sequences"})


def storages() -> dict[int, int]:
    """Bytes of every storage that a live tensor has, once each."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, torch.nn.Parameter)]
    parts = [tensor.untyped_storage() for tensor in tensors]
    return {storage._cdata: storage.nbytes() for storage in parts}


def held_after_a_step(job: Job, rank: int) -> int:
    """Bytes that training holds between two steps on a rank, from all tensors that are there then."""
    before = storages()
    with fake_world(ranks_of(job), rank) as mesh:
        # what is recorded on tensors without memory is counted on the CPU's
        device = torch.device("cpu" if (kind := recorded_on(job)) == FAKE else kind)
        trainee = trains(job)(job, mesh, device, Adam(), initialised=False)
        batch = batch_of(job, trainee.context)
        given = {micro.weights.untyped_storage()._cdata for micro in batch}
        given |= {micro.tokens.untyped_storage()._cdata for micro in batch}
        for _ in range(trainee.warm_up_steps + 1):
            trainee.step(batch, LEARNING_RATE)
        after = storages()
    return sum(size for storage, size in after.items() if storage not in before and storage not in given)


@pytest.mark.parametrize("name", few(sorted(CASES), *sorted(CASES)[::12]))
def test_the_twin_counts_what_the_runtime_holds(name: str) -> None:
    job = described(*CASES[name])
    needed = memory_use(job).by_category
    kept = sum(needed[category] for category in KEPT) + (needed["buffers"] if job.strategy == "ddp" else 0.0)
    assert held_after_a_step(job, job.ranks - 1) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("name", few(sorted(ON_HOST), "all axes", "fsdp", "sharded, overlapped"))
def test_the_device_holds_less_by_what_lies_on_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken from a tier is counted apart: the device has the rest, the host what the twin says."""
    taken: list[torch.Tensor] = []
    zeros = Room.zeros

    def counted(room: Room, elements: int, kind: torch.dtype) -> torch.Tensor:
        taken.append(zeros(room, elements, kind))
        return taken[-1]

    monkeypatch.setattr(Room, "zeros", counted)
    grid, options = ON_HOST[name]
    job = described(grid, {**options, "machine": "polaris", "offload": OFFLOAD})
    use = memory_use(job)
    kept = sum(use.by_category[category] for category in KEPT)
    held = held_after_a_step(job, job.ranks - 1)
    beyond = sum(tensor.nbytes for tensor in taken)
    assert held - beyond == pytest.approx(kept, rel=0.02)
    ranks = min(job.ranks, job.machine.devices_per_node)
    assert beyond == pytest.approx(use.tiers["host"].node_bytes / ranks, rel=0.02)


@pytest.mark.parametrize("name", few(sorted(STAGES), *sorted(STAGES)[::8]))
def test_the_twin_counts_what_every_stage_holds(name: str) -> None:
    """Where messages arrive stays from step to step: PyTorch's stages keep that of every micro-batch."""
    grid, options = STAGES[name]
    model = MODEL | {"layers": 4} | options.get("model", {})
    batch = {"sequences": 8 * grid.get("data", 1), "micro_sequences": 1}
    job = described(grid, TORCH | options | {"model": model, "batch": batch})
    strategy = strategy_of(job)
    by_rank = dict(zip(range(0, job.ranks, job.ranks // grid.get("pipeline", 1)), strategy.roles(job), strict=True))
    for rank, role in by_rank.items():
        needed = strategy.memory(job, role)
        kept = sum(needed[category] for category in (*KEPT, "messages"))
        assert held_after_a_step(job, rank) == pytest.approx(kept, rel=0.002), rank


@pytest.mark.parametrize(
    ("data", "options"),
    few([(2, SHARDED), (4, SHARDED), (8, SHARDED), (2, AHEAD), (8, AHEAD)], (8, SHARDED), (2, AHEAD)),
)
def test_sharded_holds_six_bytes_and_its_part_of_twelve(data: int, options: dict[str, Any]) -> None:
    job = described({"data": data}, options)
    assert held_after_a_step(job, 0) == pytest.approx((6 + 12 / data) * job.model.parameters, rel=1e-3)


def test_fsdp_pads_in_memory_of_its_own() -> None:
    """A rank with fewer rows of a parameter than others has that shard twice, in fp32; the others do not."""
    job = described({"weights": 7}, {"strategy": "fsdp", "model": LLAMA | {"vocabulary": 1003}})
    kept = sum(memory_use(job).by_category[category] for category in KEPT)
    assert held_after_a_step(job, 0) == pytest.approx(kept, rel=1e-3)
    assert held_after_a_step(job, 6) == pytest.approx(kept * (16 + 4) / 16, rel=0.01)
