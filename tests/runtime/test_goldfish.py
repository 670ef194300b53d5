"""Goldfish loss: which targets are dropped depends on the tokens before them, on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.goldfish import Goldfish
from tests.profiles import examples

TEXT = torch.randint(0, 50_000, (64, 1025), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("k", [2, 3, 4, 10])
def test_one_of_k_is_dropped(k):
    kept = Goldfish(k=k, h=13).keeps(TEXT)
    assert kept.shape == (64, 1024)
    assert (~kept[:, 12:]).double().mean().item() == pytest.approx(1 / k, abs=0.006)


def test_targets_without_enough_context_are_kept():
    assert Goldfish(k=2, h=13).keeps(TEXT)[:, :12].all()


@examples(0.5)
@given(st.integers(1, 8), st.integers(0, 40), st.integers(0, 40), st.integers(2, 5))
def test_the_same_passage_is_masked_alike_wherever_it_stands(h, here, there, k):
    passage = TEXT[0, :60]
    goldfish = Goldfish(k=k, h=h)
    a, b = TEXT[1, :120].clone(), TEXT[2, :120].clone()
    a[here : here + 60] = passage
    b[there : there + 60] = passage
    masks = [goldfish.keeps(window[None])[0] for window in (a, b)]
    # target i is token i + 1; it is decided by tokens i - h + 1 … i, which all lie in the passage
    first = masks[0][here + h - 1 : here + 59]
    assert torch.equal(first, masks[1][there + h - 1 : there + 59])


def test_the_order_of_the_context_matters():
    window = TEXT[:, :6]
    swapped = window[:, [1, 0, 2, 3, 4, 5]]
    goldfish = Goldfish(k=2, h=2)
    assert not torch.equal(goldfish.keeps(window)[:, 1], goldfish.keeps(swapped)[:, 1])
    assert torch.equal(goldfish.keeps(window)[:, 3:], goldfish.keeps(swapped)[:, 3:])


def test_the_target_itself_does_not_decide():
    other = TEXT.clone()
    other[:, -1] += 1
    goldfish = Goldfish(k=3, h=4)
    assert torch.equal(goldfish.keeps(TEXT), goldfish.keeps(other))
