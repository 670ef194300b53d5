"""Memory of what is on its way: the fullest rank of a pipeline, and losses that copy logits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.strategies import load_job
from twin.strategies.megatron.memory import every_memory, memory_by_category

ORDERS: dict[str, tuple[str, int]] = {
    "gpipe": ("torch", 1),
    "1f1b": ("megatron", 1),
    "interleaved": ("megatron", 2),
    "zb_h1": ("torch", 1),
    "zb_h2": ("megatron", 1),
    "zb_v": ("torch", 2),
    "dualpipe_v": ("torch", 2),
    "dualpipe": ("megatron", 1),
}
"""Flavour and chunks of each."""


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """A pipeline of any schedule, with stages of unequal length."""
    schedule = draw(st.sampled_from(sorted(ORDERS)))
    flavour, chunks = ORDERS[schedule]
    ranks, rounds = draw(st.sampled_from([2, 4])), draw(st.integers(1, 3))
    stages = ranks * chunks
    layers = draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
    micro_steps = 2 * ranks * rounds
    return {
        "model": {"layers": sum(layers), "hidden": 64, "heads": 4, "sequence": 64, "vocabulary": draw(vocabularies)},
        "machine": draw(st.sampled_from(["dgx-h100", "laptop"])),
        "strategy": "megatron",
        "flavour": flavour,
        "ranks": ranks,
        "grid": {"pipeline": ranks},
        "schedule": schedule,
        "chunks": chunks,
        "stage_layers": layers,
        "precision": draw(st.sampled_from(["bf16", "fp32"])),
        "recompute": draw(st.booleans()),
        "batch": {"sequences": micro_steps, "micro_sequences": 1},
    }


vocabularies = st.sampled_from([64, 5000])


@examples(0.5)
@given(pipelines())
def test_no_rank_that_is_left_out_needs_most(raw: dict[str, Any]) -> None:
    """Of ranks some are looked at alone: those of which no other holds as much of everything."""
    try:
        job: Any = load_job(raw)
    except DescriptionError:
        return  # a rule of the schedule about stages
    looked_at = max(sum(each.values()) for each in every_memory(job))
    ranks = range(job.concrete_grid.pipeline)
    assert looked_at == pytest.approx(max(sum(memory_by_category(job, rank).values()) for rank in ranks))


@pytest.mark.parametrize("strategy", [{"strategy": "fsdp"}, {"strategy": "megatron", "flavour": "torch"}])
def test_a_loss_that_copies_logits_needs_four_bytes_more_in_16_bits_and_twelve_in_32(strategy: dict[str, str]) -> None:
    axis = "weights" if strategy["strategy"] == "fsdp" else "data"
    model = {"layers": 1, "hidden": 64, "heads": 4, "sequence": 128, "vocabulary": 50_000}
    raw = {"model": model, "machine": "dgx-h100", "ranks": 4, "grid": {axis: 4}, **strategy}
    raw["batch"] = {"sequences": 4, "micro_sequences": 1}
    for precision, more in (("bf16", 4), ("fp32", 12)):
        here, there = (
            memory_use(load_job(raw | {"precision": precision, **loss})).by_category["activations"]
            for loss in ({}, {"loss_in_place": False})
        )
        assert there - here == pytest.approx(more * 128 * 50_000, rel=0.35 if precision == "fp32" else 1e-9)
    with pytest.raises(DescriptionError, match=r"loss_in_place.*loss_rows"):
        load_job(raw | {"loss_in_place": False, "loss_rows": 8})


def test_inputs_that_wait_in_the_host_fill_it() -> None:
    """As activations beyond the device do, by another name."""
    raw: dict[str, Any] = {
        "model": {"layers": 80, "hidden": 8192, "heads": 64, "sequence": 8192, "vocabulary": 1000},
        "machine": "4xh100",
        "ranks": 4,
        "grid": {"z": 4},
        "batch": {"sequences": 64, "micro_sequences": 16},
    }
    use = memory_use(load_job(raw | {"recompute_inputs": "host"}))
    inputs = 4 * 79 * 16 * 8192 * 8192 * 2  # of a node's four ranks
    assert use.tiers["host"].by_category == {"activations": inputs}
    assert use.tiers["host"].node_bytes == inputs > 512e9
    assert use.full == "host"
    beyond = memory_use(load_job(raw | {"offload": {"activations": "host"}}))
    assert beyond.tiers["host"].by_category["activations"] == pytest.approx(inputs, rel=0.01)
