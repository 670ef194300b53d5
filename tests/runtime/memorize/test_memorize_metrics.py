"""Figures of one text against brute force, and closed forms against simulation and the masks themselves."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.goldfish import TABLE_SEED, TABLE_SIZE, Goldfish
from runtime.memorize.bounds import all_right, right_before_error
from runtime.memorize.metrics import common_subsequence, judge
from runtime.plan.plan import identity_of_loss
from twin.description.train import GoldfishLoss

WORDS = st.lists(st.integers(0, 3), min_size=1, max_size=7)


def subsequences(tokens: list[int]) -> set[tuple[int, ...]]:
    return {chosen for size in range(len(tokens) + 1) for chosen in combinations(tokens, size)}


@given(WORDS, WORDS)
def test_the_longest_common_subsequence_is_the_longest_of_all(one, other):
    assert common_subsequence(one, other) == max(map(len, subsequences(one) & subsequences(other)))


@given(st.data(), WORDS)
def test_every_figure_by_its_definition(data, true):
    n = len(true)
    written = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    dropped = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    found = judge(true, written, dropped)
    wrong = [i for i in range(n) if true[i] != written[i]]
    assert found.exact == (true == written)
    assert found.accuracy == pytest.approx(1 - len(wrong) / n)
    assert found.first_error == (wrong[0] if wrong else None)
    assert found.first_drop == next((i for i in range(n) if dropped[i]), None)
    assert found.at_drop == (dropped[wrong[0]] if wrong else None)
    assert found.subsequence >= found.accuracy - 1e-9


def test_without_a_known_mask_nothing_is_said_of_drops():
    found = judge([1, 2], [1, 3], None)
    assert (found.first_error, found.first_drop, found.at_drop) == (1, None, None)


@given(st.integers(2, 40), st.integers(1, 40), st.floats(0, 1))
def test_the_expected_number_is_the_sum_of_the_probabilities(k, n, guess):
    """E[right before the first error] = Σ P(the first i are right)."""
    assert right_before_error(k, n, guess) == pytest.approx(sum(all_right(k, i, guess) for i in range(1, n + 1)))


def test_where_every_target_counts_all_is_right():
    assert (all_right(None, 32), right_before_error(None, 32)) == (1.0, 32.0)


TEXTS, N = 4000, 32
WINDOWS = torch.from_numpy(np.random.default_rng(5).integers(50_000, size=(TEXTS, 65)))
DEVIATIONS = 5
"""Of a mean that chance may be away from its expectation: once in two million."""


@pytest.mark.parametrize("mask", ["hash", "hash_table", "random"])
@pytest.mark.parametrize("k", [2, 3, 4, 8, 32])
def test_masks_drop_as_the_closed_forms_say(mask, k):
    kept = Goldfish(k, 8, mask).keeps(WINDOWS)[:, -N:]
    before = torch.where(kept.all(1), N, (~kept).int().argmax(1)).double()
    share = kept.all(1).double().mean().item()
    expected = all_right(k, N)
    assert abs(share - expected) <= DEVIATIONS * sqrt(expected * (1 - expected) / TEXTS) + 1 / TEXTS
    assert abs(before.mean().item() - right_before_error(k, N)) <= DEVIATIONS * before.std().item() / sqrt(TEXTS)


@pytest.mark.parametrize("k", [2, 3, 5, 100])
def test_static_drops_every_kth_target(k):
    kept = Goldfish(k, 8, "static").keeps(WINDOWS[:2])
    assert [i for i in range(64) if not kept[0, i]] == list(range(k - 1, 64, k))
    assert torch.equal(kept[0], kept[1])


def test_random_drops_others_each_time_and_the_same_wherever_it_is_computed():
    goldfish = Goldfish(3, 8, "random", seed=4)
    whole = goldfish.keeps(WINDOWS[:8], 16)
    assert torch.equal(whole[2:5], goldfish.keeps(WINDOWS[2:5], 18))
    assert not torch.equal(whole, goldfish.keeps(WINDOWS[:8], 24))
    assert not torch.equal(whole, Goldfish(3, 8, "random", seed=5).keeps(WINDOWS[:8], 16))


def test_the_table_is_looked_up_by_the_product_of_targets():
    """Target by target, with whole numbers that do not wrap around, and reduced as int64 does."""
    k, h = 3, 4
    table = torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(TABLE_SEED))
    targets = WINDOWS[0, 1:].tolist()
    expected = []
    for last in range(len(targets)):
        product = 1
        for token in targets[max(0, last - h + 1) : last + 1]:
            product *= token
        wrapped = (product + 2**63) % 2**64 - 2**63
        expected.append(last < h - 1 or bool(table[wrapped % TABLE_SIZE] >= 1 / k))
    assert Goldfish(k, h, "hash_table").keeps(WINDOWS[:1])[0].tolist() == expected


def test_runs_from_before_there_were_masks_are_the_runs_they_were():
    """`run.json` compares what a run is; a mask that nobody chose is not written down."""
    assert identity_of_loss(GoldfishLoss(k=3, h=5)) == {"k": 3, "h": 5}
    assert identity_of_loss(GoldfishLoss(k=3, h=5, mask="static")) == {"k": 3, "h": 5, "mask": "static"}
    assert Goldfish(3, 5) == Goldfish(3, 5, "hash")


def test_what_is_known_of_the_table():
    """Order is lost, and a zero or enough even tokens make all products one; the hash knows better."""
    window = WINDOWS[:, :9]
    turned = window[:, [0, 4, 3, 2, 1, 5, 6, 7, 8]]
    table, ours = (Goldfish(2, 4, mask) for mask in ("hash_table", "hash"))
    assert torch.equal(table.keeps(window)[:, 3], table.keeps(turned)[:, 3])
    assert not torch.equal(ours.keeps(window)[:, 4], ours.keeps(turned)[:, 4])
    spaces = torch.full((1, 40), 32)
    zeros = torch.zeros(1, 40, dtype=torch.int64)
    assert torch.equal(Goldfish(2, 13, "hash_table").keeps(spaces), Goldfish(2, 13, "hash_table").keeps(zeros))
