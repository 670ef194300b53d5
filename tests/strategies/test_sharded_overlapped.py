"""Reduce-scatters of buckets beside the backward pass, gathers of what was updated beside the next forward pass."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.test_four_d_beyond import MODEL
from tests.strategies.test_four_d_beyond import job as as_beyond
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.ops import Compute, Start, Wait
from twin.strategies import strategy_of
from twin.strategies.four_d.buckets import buckets_of, grouped
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Shapes
from twin.strategies.four_d.step import generate

AHEAD = {"data_reduction": {"mode": "sharded_overlapped", "bucket": "1 KiB"}}
"""A bucket for every block."""


def job(grid: dict[str, int], **options: Any) -> FourDJob:
    sizes = {"data": 1, "z": 1, "y": 1, "x": 1, **grid}
    batch = {"sequences": 4 * sizes["data"] * sizes["z"], "micro_sequences": 2}
    return as_beyond(sizes, **{"batch": batch, **AHEAD, **options})


def issued(found: FourDJob) -> list[str]:
    """Names in program order; starts are marked with > and waits with <."""
    mark = {Start: ">", Wait: "<"}
    return [mark.get(type(op), "") + name for name, op in generate(found).named()]


GRIDS = [{"data": 4}, {"data": 2, "z": 2}, {"data": 2, "z": 2, "y": 2, "x": 2}]
grids = pytest.mark.parametrize("grid", GRIDS, ids=str)


@grids
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_there_before_they_are_read(grid: dict[str, int], tied: bool) -> None:
    """All gathers are started first, in the order of first use; a bucket is waited for once, where it is read first."""
    text = issued(job(grid, model={**MODEL, "tied_embeddings": tied}))
    # the blocks' buckets, from the first block's on, and the head's: a tied one is up to date when a step begins
    order = ["replicated", *(f"bucket{number}" for number in reversed(range(4 if tied else 5)))]
    assert text[: len(order)] == [f">fwd/{name}/all_gather_data" for name in order]
    waits = [text.index(f"<fwd/{name}/all_gather_data") for name in order]
    assert waits[1:] == sorted(waits[1:])
    assert waits[0] < text.index("micro0/fwd/embedding/lookup")
    read = ">micro0/fwd/{}/all_gather_z" if "z" in grid else "micro0/fwd/{}/gemm"
    for place, wait in zip((*(f"block{layer}/qkv" for layer in range(4)), "head"), waits[1:], strict=False):
        assert wait + 1 == text.index(read.format(place))
    assert all(text.count(f"<fwd/{name}/all_gather_data") == 1 for name in order)
    assert text.count(">optimizer/head/all_gather_data") == tied


@grids
def test_gradients_leave_beside_the_last_backward_pass(grid: dict[str, int]) -> None:
    """One reduce-scatter a bucket, each behind the gradients that it carries and before those two blocks on."""
    text = issued(job(grid))
    starts = [text.index(f">micro1/bwd/bucket{number}/reduce_scatter_data") for number in range(5)]
    assert starts == sorted(starts)
    assert not [t for t in text if t.startswith(">micro0/") and "_data" in t]
    for number, layer in enumerate((None, 3, 2, 1, 0)):
        place = "head" if layer is None else f"block{layer}/qkv"
        made = max(i for i, t in enumerate(text) if t.startswith(f"micro1/bwd/{place}/"))
        assert made < starts[number]
        if number < 3:
            behind = min(i for i, t in enumerate(text) if t.startswith(f"micro1/bwd/block{(4, 3, 2)[number] - 2}/"))
            assert starts[number] < behind
    waits = [i for i, t in enumerate(text) if t.startswith("<micro1/bwd/bucket")]
    assert min(waits) > max(starts)
    assert max(waits) < text.index("optimizer/clip/norm"), "the norm is of the whole sum"


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12), least=st.integers(1, 20))
@examples(1)
def test_buckets_hold_everything_once_and_are_large_enough(sizes: list[int], least: int) -> None:
    groups = grouped(sizes, least)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    filled = [sum(sizes[index] for index in group) for group in groups]
    assert all(size >= least for size in filled[:-1])
    assert all(sum(sizes[index] for index in group[:-1]) < least for group in groups if group)
    assert all(one.stop == other.start for one, other in pairwise(groups))


@grids
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_rank_holds_six_bytes_and_its_part_of_twelve(grid: dict[str, int], precision: str) -> None:
    """Of what it stores; in fp32 the weights that are computed with are the master weights. Padding aside, exactly."""
    found = job(grid, precision=precision)
    use, data = memory_use(found).by_category, grid["data"]
    stored = Shapes(found).local_elements
    own = sum(bucket.own for bucket in buckets_of(found, Shapes(found)))
    assert own == math.ceil((stored + 1) / data) or 0 < own - stored / data < 6
    e, states = (2, 12) if precision == "bf16" else (4, 8)
    assert use["weights"] + use["gradients"] == stored * (e + 4)
    assert use["optimizer"] == own * states


def test_nothing_more_arrives_beside_the_gradients() -> None:
    """What a reduce-scatter of everything brings has a place of its own; of a bucket's it is that of the gradients."""
    ahead = memory_use(job({"data": 4})).by_category["buffers"]
    at_the_end = memory_use(job({"data": 4}, data_reduction={"mode": "sharded"})).by_category["buffers"]
    assert ahead == memory_use(job({"data": 4}, data_reduction={"mode": "one_bucket"})).by_category["buffers"]
    assert ahead < at_the_end


BILLIONS = {"layers": 8, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 51200}


@pytest.mark.parametrize("grid", [{"data": 8}, {"data": 4, "z": 4}, {"data": 4, "z": 2, "y": 2, "x": 2}], ids=str)
def test_it_is_no_slower_than_the_same_bytes_beside_nothing(grid: dict[str, int]) -> None:
    seconds = {
        mode: simulate(job(grid, model=BILLIONS, data_reduction={"mode": mode})).step_seconds
        for mode in ("sharded", "sharded_overlapped")
    }
    assert seconds["sharded_overlapped"] < seconds["sharded"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"published": True}, ["data_reduction.mode = 'sharded_overlapped'", "beyond the published", "leave it out"]),
        ({"lora": {"targets": ["up"]}}, ["data_reduction.mode = 'sharded_overlapped'", "use sharded with lora"]),
        (
            {"communication_precision": {"gathers": "fp32"}},
            ["communication_precision.gathers = 'fp32'", "sharded_overlapped", "use compute"],
        ),
        ({"data_reduction": {"mode": "zero1"}}, ["data_reduction.mode", "zero1", "sharded_overlapped"]),
    ],
    ids=["published", "lora", "fp32 gathers", "unknown"],
)
def test_what_does_not_go_with_it_is_refused(options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(DescriptionError) as error:
        job({"data": 2, "z": 2}, **options)
    assert all(words in str(error.value) for words in named), str(error.value)


def test_one_replica_has_nothing_to_share() -> None:
    alone = job({"z": 2, "x": 2})
    plain = job({"z": 2, "x": 2}, data_reduction={"mode": "one_bucket"})
    assert issued(alone) == issued(plain)
    assert memory_use(alone) == memory_use(plain)


def modes(found: FourDJob, *over: str) -> list[str]:
    return [variant.data_reduction for variant in strategy_of(found).variants(found, frozenset(over))]


def test_a_search_tries_it_in_place_of_sharded() -> None:
    plain = job({"data": 4}, data_reduction={"mode": "one_bucket"})
    assert modes(plain, "sharding") == ["one_bucket", "overlapped", "sharded"]
    assert modes(plain, "sharding", "sharded_overlapped") == ["one_bucket", "overlapped", "sharded_overlapped"]
    assert modes(plain, "sharded_overlapped") == ["one_bucket", "sharded_overlapped"]
    assert modes(job({"z": 4}, data_reduction={"mode": "one_bucket"}), "sharded_overlapped") == ["one_bucket"]
    published = job({"data": 4}, data_reduction={"mode": "one_bucket"}, published=True)
    assert modes(published, "sharding", "sharded_overlapped") == ["one_bucket", "overlapped", "sharded"]


def test_what_is_moved_is_what_sharded_moves_but_for_padding() -> None:
    """Compute is the same, but for the copy of what arrived into its place."""
    found = job({"data": 4, "z": 2})
    whole = job({"data": 4, "z": 2}, data_reduction={"mode": "sharded"})

    def data_bytes(of: FourDJob) -> float:
        return sum(op.bytes for _, op in generate(of).named() if isinstance(op, Start) and op.axis == "data")

    def computed(of: FourDJob) -> list[str]:
        return sorted(name for name, op in generate(of).named() if isinstance(op, Compute) and name != "reduce/keep")

    assert data_bytes(found) == pytest.approx(data_bytes(whole), rel=1e-4)
    assert computed(found) == computed(whole)
