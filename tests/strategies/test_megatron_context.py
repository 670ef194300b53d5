"""Context parallelism of strategy megatron: what moves between context ranks, and what it runs beside."""

from __future__ import annotations

import pytest

from tests.strategies.pipelined import BF16, HEADS, B, H, S, described, hidden_by, moved, ops, started
from twin.description.problems import DescriptionError
from twin.schedule.kernels import Attention
from twin.strategies import strategy_of


def test_a_ring_sends_keys_and_values_around_and_back_their_gradients_too() -> None:
    """c − 1 hops of 2·2·b·(s/c)·(kv/t)·d bytes, beside all steps but the last; as many of gradients, but the first."""
    c, t, kv = 4, 2, 4
    job = described({"context": c, "tensor": t}, model={"kv_heads": kv}, attention="flash")
    step = 2 * BF16 * B * (S / c) * (kv / t) * (H / HEADS)
    for kind, times, last in (("F", 1, c - 1), ("B", 2, c)):
        (found,) = moved(job, within=f"micro1/{kind}/block2/", communicator="context").items()
        assert found == (("shift", step), times * (c - 1))
        beside = {n for n in hidden_by(job, f"micro1/{kind}/block2/", "shift") if n.startswith("attention")}
        assert beside == {f"attention{number}" for number in range(last)}


def test_neighbours_trade_and_the_rest_goes_round() -> None:
    """Hierarchical: heads are traded over 2 neighbours, keys and values of half the heads go round 2 others."""
    job = described({"context": 4}, context_exchange="hierarchical", context_traders=2, attention="flash")
    tensor = BF16 * B * (S / 4) * H
    forward = moved(job, within="micro1/F/block2/", communicator="context")
    assert forward == {("all_to_all", 3 * tensor): 1, ("shift", 2 * tensor): 1, ("all_to_all", tensor): 1}
    groups = {c.name: c.members.tolist() for c in strategy_of(job).communicators(job)}
    assert groups["context_inner"] == [[0, 1], [2, 3]]
    assert groups["context_outer"] == [[0, 2], [1, 3]]
    whole, part = (
        next(op.kernel for name, op in ops(each) if name.startswith("micro1/F/block2/attention"))
        for each in (described({}, attention="flash"), job)
    )
    assert part.heads * 2 == whole.heads
    assert part.sequence_length * 2 == whole.sequence_length


def test_traders_are_those_of_a_node_unless_told() -> None:
    job = described({"context": 16}, context_exchange="hierarchical", attention="flash")
    assert job.traders == HEADS == 8
    alone = described({"context": 4}, model={"kv_heads": 1}, context_exchange="hierarchical", attention="flash")
    around = described({"context": 4}, model={"kv_heads": 1}, attention="flash")  # one head of keys: none to trade
    assert ops(alone) == ops(around)
    with pytest.raises(DescriptionError, match="must divide the 4 context ranks"):
        described({"context": 4}, context_exchange="hierarchical", context_traders=3, attention="flash")
    with pytest.raises(DescriptionError, match="needs context_exchange: hierarchical"):
        described({"context": 4}, context_traders=2, attention="flash")


def test_gathered_keys_are_scattered_back() -> None:
    c = 4
    job = described({"context": c}, context_exchange="all_gather", attention="flash")
    keys = 2 * BF16 * B * S * H
    assert moved(job, within="micro1/F/block2/", communicator="context") == {("all_gather", keys): 1}
    assert moved(job, within="micro1/B/block2/", communicator="context") == {
        ("all_gather", keys): 1,
        ("reduce_scatter", keys): 1,
    }
    assert hidden_by(job, "micro1/F/block2/", "all_gather") == []


@pytest.mark.parametrize("kv", [HEADS, 4])
def test_traded_heads_move_queries_keys_values_and_what_comes_of_them(kv: int) -> None:
    """Four all-to-alls a layer and way: Q and O of 2·b·(s/c)·(h/t) bytes, K and V of 2·b·(s/c)·(kv·d/t)."""
    c, t = 2, 2
    job = described(
        {"context": c, "tensor": t}, context_exchange="all_to_all", model={"kv_heads": kv}, attention="flash"
    )
    of_queries = BF16 * B * (S / c) * (H / t)
    of_keys = BF16 * B * (S / c) * (kv / t) * (H / HEADS)
    for kind in "FB":
        total = sum(op.bytes for _, op in started(job, within=f"micro1/{kind}/block2/", communicator="context"))
        assert total == pytest.approx(2 * of_queries + 2 * of_keys)


@pytest.mark.parametrize(
    ("keys", "form"),
    [
        ({"flavour": "torch"}, "flash2"),
        ({"flavour": "torch", "context_exchange": "all_gather"}, "flash2"),
        ({"flavour": "torch", "context_exchange": "all_to_all"}, "flash"),
        ({"flavour": "torch", "attention": "cudnn"}, "cudnn"),
        ({"flavour": "torch", "machine": "frontier"}, "flash"),
        ({}, "flash"),
    ],
)
def test_parts_of_a_sequence_are_attended_to_by_flash_attention_in_training(keys: dict[str, str], form: str) -> None:
    """Where another kernel is usual, as cuDNN's on an H100; Megatron-LM meets parts by the usual one."""
    job = described({"context": 4}, **{"attention": "flash", **keys})
    forms = {op.kernel.form for _, op in ops(job) if isinstance(getattr(op, "kernel", None), Attention)}
    assert forms == {form}
