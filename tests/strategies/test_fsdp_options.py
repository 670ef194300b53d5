"""What a search varies under fsdp: recomputation, and weights that stay; where that changes nothing it does not."""

from __future__ import annotations

from typing import Any

import pytest

from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.search.over import parse_over
from twin.search.search import search
from twin.strategies import load_job, named
from twin.strategies.fsdp.options import VARIED, Options

MODEL = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 256}
JOB: dict[str, Any] = {"model": MODEL, "machine": "dgx-a100", "ranks": 4, "strategy": "fsdp", "batch": {"sequences": 8}}
FSDP = named("fsdp")
EVERY = frozenset(VARIED)


@pytest.mark.parametrize(
    ("keys", "over", "many"),
    [
        ({"grid": {"weights": 4}}, frozenset(), 1),
        ({"grid": {"weights": 4}}, EVERY, 4),
        ({"grid": {"data": 2, "weights": 2}}, frozenset({"reshard"}), 2),
        ({"grid": {"data": 4}}, EVERY, 2),
        ({"grid": {"gradients": 4}}, EVERY, 2),
        ({"grid": {"weights": 4}, "flavour": "deepspeed"}, EVERY, 2),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, frozenset) else str(value),
)
def test_no_two_candidates_are_one_job(keys: dict[str, Any], over: frozenset[str], many: int) -> None:
    job = load_job(JOB | keys | {"recompute": False})
    found = list(FSDP.variants(job, over))
    assert found[0] == FSDP.variant(job) == Options(False, True)
    assert len(set(found)) == len(found) == many
    for one in found:
        raw = JOB | keys
        one.settle(raw)
        assert FSDP.variant(load_job(raw)) == one == FSDP.variant_of(one.as_json())


def test_the_fastest_is_among_more() -> None:
    job = load_job(JOB)
    assert search(job, over=EVERY).best.step_seconds < search(job).best.step_seconds


def test_what_older_searches_wrote_is_read() -> None:
    assert FSDP.variant_of({"micro_sequences": 4}) == FSDP.variant(load_job(JOB))
    with pytest.raises(ValueError, match=r"options\.recompute: expected true or false"):
        FSDP.variant_of({"recompute": 1})


def test_words_of_other_strategies_are_refused() -> None:
    assert parse_over("all", FSDP) == {*VARIED, "micro"}
    with pytest.raises(DescriptionError, match="--over = 'cache'"):
        parse_over("cache", FSDP)


def test_whole_gradients_are_kept_once() -> None:
    """DeepSpeed's first stage has them anyway: summing them whole counted them twice, 6 GiB of a model of 3.2 B."""
    keys = {
        "strategy": "fsdp",
        "flavour": "deepspeed",
        "model": {"layers": 2, "hidden": 256, "heads": 4, "sequence": 64, "vocabulary": 512},
        "machine": "dgx-h100",
        "ranks": 8,
        "batch": {"sequences": 64, "micro_sequences": 1},
    }
    for grid, more in (({"optimizer": 8}, False), ({"gradients": 8}, True)):
        plain, whole = (
            memory_use(load_job({**keys, "grid": grid, **options})).by_category["gradients"]
            for options in ({}, {"accumulate": "whole"})
        )
        assert (whole > plain) is more


def test_buckets_of_deepspeed_have_their_whole_size() -> None:
    """One rank's too: the third stage's and what is joined of it, the others' one or two, and a gradient before it."""
    hidden, vocabulary, mlp = 256, 512, 1024
    keys = {
        "strategy": "fsdp",
        "flavour": "deepspeed",
        "model": {"layers": 2, "hidden": hidden, "heads": 4, "sequence": 64, "vocabulary": vocabulary},
        "machine": "dgx-h100",
        "batch": {"sequences": 8, "micro_sequences": 1},
        "reduce_precision": "compute",
    }
    one = 2 * max(mlp * hidden, (vocabulary + 64) * hidden)
    for ranks, grid, overlap, copies in (
        (1, {"weights": 1}, True, 2),
        (8, {"weights": 8}, True, 2),
        (8, {"weights": 8}, False, 2),
        (8, {"gradients": 8}, True, 2),
        (8, {"gradients": 8}, False, 1),
    ):
        job = load_job({**keys, "ranks": ranks, "grid": grid, "overlap_reduction": overlap, "bucket_elements": 10**6})
        assert memory_use(job).by_category["buffers"] == copies * 2 * 10**6 + one
    job = load_job({**keys, "ranks": 8, "grid": {"gradients": 8}})
    assert memory_use(job).by_category["buffers"] == (2 if job.overlap_reduction else 1) * 2 * 500_000_000 + one
