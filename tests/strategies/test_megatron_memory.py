"""What ranks of Megatron's parallelism hold, against arXiv 2205.05198, Megatron's estimator and logs of DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.strategies.pipelined import HEADS, WHOLE, B, H, S, described, parameters
from twin.cost.memory import memory_use
from twin.strategies import load_job, strategy_of


def held(job: Any) -> float:
    used = memory_use(job).by_category
    return used["weights"] + used["gradients"] + used["optimizer"]


@pytest.mark.parametrize("data", [2, 8, 32])
def test_bytes_of_a_parameter(data: int) -> None:
    """18, and 6 + 12/D with a distributed optimizer; DeepSpeed's 8 + 12/D (its logs: slope 3 from D = 2 to 4)."""
    psi = parameters()
    assert held(described({"data": data})) == pytest.approx(18 * psi)
    assert held(described({"data": data}, distributed_optimizer=True)) == pytest.approx((6 + 12 / data) * psi, rel=1e-6)
    assert held(described({"data": data}, gradient_precision="compute")) == pytest.approx(16 * psi)
    stage = parameters(2, ends="first")
    deepspeed = described({"data": data, "pipeline": 2}, flavour="deepspeed", distributed_optimizer=True)
    strategy = strategy_of(deepspeed)
    used = strategy.memory(deepspeed, strategy.roles(deepspeed)[0])
    of_stage = used["weights"] + used["gradients"] + used["optimizer"]
    assert of_stage == pytest.approx((8 + 12 / data) * stage, rel=1e-6)
    context = described({"data": data, "context": 2}, distributed_optimizer=True, attention="flash")
    assert held(context) == pytest.approx((6 + 6 / data) * psi, rel=1e-6)


def activations(job: Any) -> float:
    return memory_use(job).by_category["activations"]


def per_layer(**options: Any) -> float:
    """Bytes that a layer's forward pass leaves for the backward pass: what one more layer needs."""
    return activations(described(model={"layers": 6}, **options)) - activations(
        described(model={"layers": 5}, **options)
    )


SBH, SCORES = float(S * B * H), 5.0 * HEADS * S / H


@pytest.mark.parametrize("t", [1, 2, 4])
def test_activations_of_a_layer_are_those_of_the_paper(t: int) -> None:
    """sbh(10 + 24/t + 5as/ht), sbh/t(34 + 5as/h); without scores where these are computed again (arXiv 2205.05198).

    Two bytes a token and width are not kept here: GELU's input and dropout masks are those of the paper, statistics
    of norms and of the softmax are counted on top.
    """
    grid = {"tensor": t}
    unfused = {"attention": "plain", "dropout": 0.1}
    assert per_layer(grid=grid, **unfused) == pytest.approx(SBH * (10 + 24 / t + SCORES / t), rel=0.02)
    assert per_layer(grid=grid, sequence_parallel=True, **unfused) == pytest.approx(SBH / t * (34 + SCORES), rel=0.02)
    flash = {"attention": "flash", "dropout": 0.1}
    assert per_layer(grid=grid, **flash) == pytest.approx(SBH * (10 + 24 / t), rel=0.03)
    again = per_layer(grid=grid, recompute_attention=True, **unfused)
    assert again == pytest.approx(SBH * (10 + 24 / t), rel=0.03)
    assert per_layer(grid=grid, recompute=True, **flash) == pytest.approx(2 * SBH, rel=1e-9)
    assert per_layer(grid=grid, recompute=True, sequence_parallel=True, **flash) == pytest.approx(2 * SBH / t, rel=1e-9)


@pytest.mark.parametrize("micro_steps", [1, 2, 4, 8])
@pytest.mark.parametrize(("schedule", "most"), [("1f1b", None), ("gpipe", 10**9)])
def test_stages_hold_as_many_micro_batches_as_are_on_their_way(schedule: str, most: Any, micro_steps: int) -> None:
    """min(P − r, M) under 1F1B; all of them under GPipe."""
    ranks = 4
    job = described({"pipeline": ranks}, micro_steps=micro_steps, schedule=schedule, recompute=True)
    strategy = strategy_of(job)
    used = [strategy.memory(job, role)["activations"] for role in strategy.roles(job)]
    whole = [
        strategy.memory(one, role)["activations"]
        for one in [described({"pipeline": ranks}, micro_steps=1, recompute=True)]
        for role in strategy.roles(one)
    ]
    for stage in range(ranks - 1):
        expected = min(ranks - stage if most is None else most, micro_steps)
        assert used[stage] - whole[stage] == pytest.approx((expected - 1) * WHOLE)


def test_interleaving_holds_more_on_the_first_stage() -> None:
    """1 + (P − 1)/(Pv) times the layers of the model (arXiv 2205.05198)."""
    ranks, chunks = 4, 2
    model = {"layers": 16}
    plain = described({"pipeline": ranks}, micro_steps=16, recompute=True, model=model)
    job = described(
        {"pipeline": ranks}, micro_steps=16, recompute=True, model=model, schedule="interleaved", chunks=chunks
    )
    one = WHOLE  # a layer's checkpoint
    expected = 16 * one * (ranks - 1) / (ranks * chunks)
    strategy = strategy_of(job)
    more = strategy.memory(job, strategy.roles(job)[0])["activations"]
    less = strategy.memory(plain, strategy.roles(plain)[0])["activations"]
    assert more - less == pytest.approx(expected)


@pytest.mark.parametrize("flavour", ["megatron", "torch"])
@pytest.mark.parametrize(("keeps", "of_attention"), [("nothing", 0.0), ("attention", 2 * SBH + 4 * HEADS * S * B)])
def test_a_block_that_is_computed_again_finds_those_behind_it_gone(
    keeps: str, of_attention: float, flavour: str
) -> None:
    """Of a micro-batch by itself, by hand: the inputs and what is kept of n blocks, and the more of two moments.

    As the backward pass begins all others are there; when it comes to the last of the n these are gone, and that one is
    there but for what was kept of it.
    """
    layers, common = 8, {"flavour": flavour, "micro_steps": 1, "attention": "flash"}

    def of(**options: Any) -> float:
        return activations(described({"data": 2}, model={"layers": layers, "vocabulary": 64}, **common, **options))

    whole = per_layer(grid={"data": 2}, **common)
    rest = of() - layers * whole
    for n in range(1, layers + 1):
        lasting = n * (2 * SBH + of_attention)
        expected = rest + lasting + max((layers - n) * whole, whole - of_attention)
        assert of(recompute=True, recompute_keeps=keeps, recompute_layers=n) == pytest.approx(expected, rel=1e-9)


def test_computing_less_again_takes_no_less_memory() -> None:
    common = {"micro_steps": 1, "model": {"layers": 8, "vocabulary": 64, "activation": "swiglu"}}
    again = {"recompute": True, "recompute_keeps": "half_products", "recompute_layers": 1}
    for flavour in ("megatron", "torch"):
        job = described({"data": 2}, flavour=flavour, **common, **again)
        assert activations(job) <= activations(described({"data": 2}, flavour=flavour, **common))


def test_a_split_backward_pass_keeps_what_its_weight_gradients_read() -> None:
    """Input gradients alone free no block: what is computed again is there beside the others."""
    grid = {"pipeline": 2}
    options = {"micro_steps": 1, "model": {"layers": 8, "vocabulary": 64}, "recompute": True, "recompute_layers": 1}
    one, split = (activations(described(grid, schedule=order, **options)) for order in ("1f1b", "zb_h1"))
    assert split - one == pytest.approx(per_layer(grid={}), rel=0.1)


LONG: dict[str, Any] = {"strategy": "megatron", "machine": "dgx-h100", "attention": "flash", "recompute": False}
LAYERS, WIDTH, QUERIES, KEYS, LOCAL = 4, 1024, 16, 2, 2048


def of_context(context: int, exchange: str = "ring", keys: int = KEYS) -> float:
    """Activations of a rank that has as many tokens whatever the number of context ranks."""
    model = {
        "layers": LAYERS,
        "hidden": WIDTH,
        "heads": QUERIES,
        "kv_heads": keys,
        "sequence": LOCAL * context,
        "vocabulary": 1024,
    }
    sizes = {"ranks": context, "grid": {"context": context}, "batch": {"sequences": 1, "micro_sequences": 1}}
    return activations(load_job({**LONG, **sizes, "model": model, "context_exchange": exchange}))


def test_what_a_rank_keeps_of_its_tokens_does_not_grow_with_the_sequence() -> None:
    """Sums of rows were counted of the whole one: 4 GiB of a million tokens of Llama 3 8B over 64 ranks."""
    assert of_context(2) == of_context(8) == of_context(32)


def test_keys_and_values_of_the_whole_sequence_are_on_a_rank_that_gathers_them() -> None:
    """With their gradients, of one layer at a time; the MLP, which goes before, has left as much as it had."""
    few, many = (of_context(context, "all_gather") - of_context(context) for context in (64, 128))
    assert many - few == 2 * (2 * 2 * 64 * LOCAL * KEYS * WIDTH / QUERIES)
    assert of_context(2, "all_gather") == of_context(2)


def test_heads_of_keys_that_are_fewer_than_the_ranks_that_trade_them_are_kept_by_each() -> None:
    copied = 2 * 2 * LOCAL * (16 - KEYS) * WIDTH / QUERIES
    assert of_context(16, "all_to_all") - of_context(16) == LAYERS * copied
    assert of_context(2, "all_to_all") == of_context(2)
