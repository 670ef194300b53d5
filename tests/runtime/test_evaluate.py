"""Evaluation and generation equal those of the serial model, on every grid."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional

from runtime.inference.generate import Choice, choose
from runtime.parallel.mesh import Mesh
from tests.profiles import part
from tests.runtime import parity, reference
from tests.runtime.equal import assemble
from tests.runtime.evaluate_tasks import (
    COUNTS,
    LENGTH,
    MADE,
    MODEL,
    PROMPTS,
    VOCABULARY,
    WINDOWS,
    build,
    held_out,
    texts,
)
from tests.tiers import quick
from twin.strategies.four_d.grid import AXES, Grid

ONE = dict.fromkeys(AXES, 1)
GRIDS = [ONE, {"data": 2, "z": 2, "y": 1, "x": 1}, {"data": 1, "z": 1, "y": 2, "x": 2}]
HOT = 8.0


@cache
def serial():
    """The serial model with the same weights."""
    shape = reference.Shape(MODEL["layers"], MODEL["hidden"], MODEL["heads"], LENGTH, VOCABULARY, 4 * MODEL["hidden"])
    model = reference.SerialGPT(shape).double()
    full = assemble([parity.pieces(build(Mesh.alone(Grid()), ONE))])
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in full.items()})
    return model


@cache
@torch.no_grad()
def mean_losses():
    """For each of the numbers of windows, their mean cross-entropy, taken one window at a time."""
    text, each = torch.from_numpy(held_out().astype(np.int64)), []
    for begin in range(0, WINDOWS * LENGTH, LENGTH):
        window = text[begin : begin + LENGTH + 1]
        each.append(functional.cross_entropy(serial()(window[None, :-1])[0], window[1:]).item())
    return [np.mean(each[:count]) for count in COUNTS]


@cache
@torch.no_grad()
def greedy():
    """The likeliest token, again and again, from as much context as the model can see."""
    found = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(MADE):
            logits = serial()(torch.tensor([tokens[-LENGTH:]]))[0, -1]
            tokens.append(int(logits.argmax()))
        found.append(tokens)
    return found


@pytest.mark.parametrize("micro_steps", [2, 4])
@pytest.mark.parametrize("grid", quick(GRIDS, GRIDS[2]), ids=lambda grid: str(Grid(**grid)))
def test_validation_loss_is_the_mean_over_the_first_sequences(pool, grid, micro_steps):
    """Eight or four sequences are one pass of all replicas, so most counts leave some over."""
    answers = pool.run(
        "tests.runtime.evaluate_tasks:losses",
        Grid(**grid).ranks,
        grid=grid,
        micro_steps=micro_steps,
        dropout=0.3,
        attention="plain",
    )
    expected = mean_losses()
    assert len(set(expected)) == len(COUNTS) - 1  # there are eleven, so 50 are those
    for found in answers:
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert found == answers[0]


@pytest.mark.parametrize("grid", quick(GRIDS, GRIDS[2]), ids=lambda grid: str(Grid(**grid)))
def test_without_temperature_the_likeliest_token_follows(pool, grid):
    answers = pool.run(
        "tests.runtime.evaluate_tasks:texts",
        Grid(**grid).ranks,
        grid=grid,
        temperature=0.0,
        dropout=0.3,
        attention="plain",
    )
    assert answers == [greedy()] * Grid(**grid).ranks
    said = {token for text in greedy() for token in text[-MADE:]}
    assert len(said) > 10  # no model that says one thing only


def test_with_temperature_every_rank_of_every_grid_says_the_same(pool):
    """A temperature so high that a row which only pads the vocabulary would be said too."""
    said = [
        answer
        for grid in GRIDS
        for answer in pool.run("tests.runtime.evaluate_tasks:texts", Grid(**grid).ranks, grid=grid, temperature=HOT)
    ]
    assert all(answer == said[0] for answer in said)
    for prompt, text in zip(PROMPTS, said[0], strict=True):
        assert text[: len(prompt)] == prompt
        assert len(text) == len(prompt) + MADE
        assert all(0 <= token < VOCABULARY for token in text)
    assert said[0] != greedy()
    other = texts(Alone(), ONE, HOT, seed=1)
    assert [text[-MADE:] for text in other] != [text[-MADE:] for text in said[0]]


class Alone:
    """A worker of one rank in this process."""

    def mesh(self, _grid):
        return Mesh.alone(Grid())


LOGITS = torch.tensor([1.0, -0.5, 0.0, 1.5, 0.25, -1.0, 1.0])
DRAWS = len(part(range(6_000), 2_000))
LIMITS = {6: 22.46, 48: 84.04}
"""What a chi-square of so many degrees of freedom exceeds once in a thousand."""


def draws(temperature, seed, count=DRAWS):
    choice = Choice(temperature, seed)
    return torch.tensor([choose(LOGITS, choice, choice.stream, place) for place in range(count)])


def chi_square(drawn, shares):
    """Pearson's statistic of draws against the shares they should have."""
    expected = shares * len(drawn)
    return float(((torch.bincount(drawn, minlength=len(shares)) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_draws_follow_the_softmax_at_a_temperature(temperature, seed):
    shares = torch.softmax(LOGITS.double() / temperature, 0)
    assert chi_square(draws(temperature, seed), shares) < LIMITS[6]


def test_neighbours_in_a_text_are_drawn_independently():
    shares = torch.softmax(LOGITS.double() / 2.0, 0)
    drawn = draws(2.0, 0, 2 * DRAWS)
    pairs = drawn[::2] * len(LOGITS) + drawn[1::2]
    assert chi_square(pairs, torch.outer(shares, shares).flatten()) < LIMITS[48]


def test_texts_of_other_seeds_are_drawn_independently():
    shares = torch.softmax(LOGITS.double(), 0)
    choices = [Choice(1.0, seed) for seed in range(DRAWS)]
    drawn = torch.tensor([choose(LOGITS, choice, choice.stream, 0) for choice in choices])
    assert chi_square(drawn, shares) < LIMITS[6]


@pytest.mark.parametrize("top_k", [1, 3, 7, 100])
def test_the_likeliest_few_keep_their_proportions(top_k):
    """Two tokens are equally likely behind the first: with them there are three."""
    choice = Choice(1.5, 0, top_k)
    drawn = torch.tensor([choose(LOGITS, choice, choice.stream, place) for place in range(DRAWS)])
    shares = torch.softmax(LOGITS.double() / 1.5, 0)
    left = torch.zeros_like(shares)
    kept = sorted(range(len(LOGITS)), key=lambda token: -shares[token])[:top_k]
    left[kept] = shares[kept] / shares[kept].sum()
    assert set(drawn.tolist()) == set(kept)
    found = torch.bincount(drawn, minlength=len(LOGITS)).double() / DRAWS
    assert (found - left).abs().max() < 4 * (0.25 / DRAWS) ** 0.5  # four standard deviations at most


@pytest.mark.parametrize("temperature", [0, 1e-310, 1e-9])
def test_no_temperature_chooses_the_largest_and_hardly_any_does(temperature):
    assert set(draws(temperature, 0, 20).tolist()) == {3}
