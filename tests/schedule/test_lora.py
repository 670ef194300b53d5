"""What low-rank adapters spare: counted in the schedule and in memory, against closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schedule.test_totals import both, counted_flops
from twin.cost.memory import memory_use
from twin.description.presets import presets
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.trace.metrics import hardware_flops, job_flops

EVERY = ["q", "k", "v", "o", "gate", "up", "down"]
ALONE: dict[str, int] = {"data": 1}


def described(grid: dict[str, int], model: Any = "llama-3-8b", **options: Any) -> Any:
    ranks = 1
    for size in grid.values():
        ranks *= size
    sequences = grid.get("data", 1) * grid.get("z", 1)
    return load_job(
        {
            "model": model,
            "machine": "dgx-h100",
            "ranks": ranks,
            "grid": grid,
            "batch": {"sequences": sequences, "micro_sequences": 1},
            **options,
        }
    )


@both
@pytest.mark.parametrize("targets", [["q", "v"], EVERY, ["down"]], ids=str)
def test_flops_of_the_schedule_are_those_of_the_reports(recompute: bool, targets: list[str]) -> None:
    model = {"preset": "llama-3-8b", "vocabulary": 128_000}
    grid = {"data": 2, "z": 2, "y": 4}  # x ranks would repeat attention
    job = described(grid, model, recompute=recompute, lora={"rank": 32, "targets": targets})
    # A runs on every rank of the output axis, B on every rank of the contraction axis
    again = 0
    for name, (_, k) in job.model.block_linears.items():
        over_o, over_c = (0, 3) if name in ("projection", "mlp_down") else (3, 0)
        again += sum(32 * (k * over_o + rows * over_c) for _, rows in job.lora.of_linear(job.model, name))
    more = 2 * (4 if recompute else 3) * job.tokens_per_step * job.model.layers * again
    assert counted_flops(job) == pytest.approx(job_flops(job, recompute=recompute) + more, rel=1e-12)
    alone = described(ALONE, model, recompute=recompute, lora={"rank": 32, "targets": targets})
    assert counted_flops(alone) == pytest.approx(job_flops(alone, recompute=recompute), rel=1e-12)


@pytest.mark.parametrize("keeps", ["nothing", "nothing, early", "attention", "products"])
@pytest.mark.parametrize("layers", [None, 8])
@pytest.mark.parametrize("targets", [["q", "v"], EVERY, ["down"]], ids=str)
def test_flops_of_the_hardware_leave_out_the_adapters_whose_products_are_kept(
    targets: list[str], layers: int | None, keeps: str
) -> None:
    what, _, early = keeps.partition(", ")
    options = {"recompute_keeps": what, "recompute_layers": layers, "lora": {"rank": 32, "targets": targets}}
    options |= {"recompute_stops_early": bool(early)}
    alone = described(ALONE, **options)
    assert counted_flops(alone) == pytest.approx(hardware_flops(alone), rel=1e-12)


def test_adapters_of_llama_have_the_elements_that_peft_prints() -> None:
    """r = 8 on q and v of Llama 2 7B: 4,194,304 (PEFT's well-known "trainable params"); r = 16 on all: 39,976,960."""
    job = described(ALONE, "llama-2-7b", lora={})
    assert job.lora.parameters(job.model) == 4_194_304
    job = described(ALONE, "llama-2-7b", lora={"rank": 16, "targets": EVERY})
    assert job.lora.parameters(job.model) == 39_976_960


@pytest.mark.parametrize("grid", [ALONE, {"data": 2, "z": 2, "y": 2, "x": 2}], ids=str)
def test_frozen_weights_take_two_bytes_and_adapters_eighteen(grid: dict[str, int]) -> None:
    job = described(grid, lora={"rank": 16, "targets": EVERY})
    used = memory_use(job).by_category
    plain = memory_use(described(grid)).by_category
    adapters = used["gradients"] / 4
    assert used["optimizer"] == 12 * adapters
    assert used["weights"] == plain["weights"] + 2 * adapters
    whole = job.lora.parameters(job.model)
    inside = grid.get("y", 1) * grid.get("x", 1)
    assert whole / inside <= adapters <= whole  # A and B are whole on one of two axes


def test_a_step_is_faster_and_smaller() -> None:
    with_lora, without = (described({"z": 8}, **options) for options in ({"lora": {}}, {}))
    steps = [report(simulate(job)).step_seconds for job in (with_lora, without)]
    assert steps[0] < 0.85 * steps[1]
    assert memory_use(with_lora).per_rank_bytes < memory_use(without).per_rank_bytes


@pytest.mark.parametrize("name", ["llama-3.1-405b", "qwen3-32b", "pythia-12b", "gpt2"])
def test_every_family_takes_them(name: str) -> None:
    assert name in presets()
    model = {"preset": name, "layers": 2}
    targets = [t for t in EVERY if t != "gate" or name[:4] in ("llam", "qwen")]
    job = described({"z": 4, "y": 2}, model, lora={"targets": targets})
    assert counted_flops(job) > 0
