"""Whether a training is healthy: its latest losses against those before, the first, the lowest, and held-out text."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dashboards.training.health import health_of
from dashboards.training.record import Record
from tests.dashboards.serving import step_line
from tests.dashboards.test_training import record_of


def test_health_is_said_with_its_reasons():
    falling = 2 + 4 * 0.99 ** np.arange(300)
    assert not health_of(record_of(falling), None, 0).worries
    assert any("leapt" in w for w in health_of(record_of([*falling, 9.0]), None, 0).worries)
    assert any("rising" in w for w in health_of(record_of([*falling, *falling[::-1]]), None, 0).worries)
    slow = [0.5] * 250 + [2.0] * 50
    assert any("slower than its own" in w for w in health_of(record_of(falling, slow), None, 0).worries)
    assert any("warned" in w for w in health_of(record_of(falling), None, 2).worries)
    assert "50 % of the predicted rate" in health_of(record_of(falling), 8192, 0).words
    assert health_of(Record(), None, 0).worries == ("no step is written yet",)


UP_AND_DOWN = [5.63, 5.13, 3.81, *np.linspace(8.7, 33.6, 28), *np.linspace(23.7, 6.2, 29)]
"""Of a training that a learning rate of 0.5 undid: at the end its loss falls, and is that of no training."""


def test_a_training_that_was_undone_is_not_healthy_because_its_loss_falls_again():
    record = record_of(UP_AND_DOWN)
    assert any("above the 5.13 that it began with" in w for w in health_of(record, None, 0).worries)
    learned = [*(2 + 4 * 0.97 ** np.arange(150)), *np.linspace(9.0, 4.0, 150)]  # lower than at the begin, yet undone
    assert any("far above the 2.0" in w for w in health_of(record_of(learned), None, 0).worries)


@pytest.mark.parametrize(
    ("found", "worry"),
    [
        ([(0, 5.63), (50, 9.76), (60, 6.16)], "validation 6.16 after 60 steps, above the 5.63 before training"),
        ([(10, 5.0), (50, 2.0), (60, 2.5)], "validation 2.5 after 60 steps, above its best, 2 after 50"),
        ([(0, 5.63), (50, math.nan)], "the validation after 50 steps is no number"),
        ([(0, 5.63), (50, 3.0), (60, 3.01)], None),
        ([(0, 5.63)], None),
        ([(0, math.nan), (50, 3.0)], None),
    ],
)
def test_validation_is_held_against_the_first_and_the_best(found, worry):
    record = record_of(2 + 4 * 0.99 ** np.arange(60))
    record.validation["validation_loss"] = found
    assert health_of(record, None, 0).worries == (() if worry is None else (worry,))


@pytest.mark.parametrize("steps", [4, 10, 60, 300, 3000])
def test_noise_alone_is_not_said_to_undo_a_training(steps):
    """A fine-tuning that changes next to nothing, batches of one sequence: losses a tenth apart."""
    for seed in range(40):
        noisy = 1.5 * (1 + 0.1 * np.random.default_rng(seed).standard_normal(steps)) - 0.1 * np.arange(steps) / steps
        found = health_of(record_of(noisy), None, 0).worries
        assert not any("began" in worry or "far above" in worry for worry in found)


def test_a_loss_that_is_a_little_above_is_said_to_be():
    slightly = [2.0] * 200 + [2.02] * 40
    assert "less than 2 % above" in health_of(record_of(slightly), None, 0).words
    assert "above" not in health_of(record_of([2.0] * 110), None, 0).words


@pytest.mark.parametrize(
    ("steps", "before"),
    [
        (range(15), 3),
        (range(0, 15 * 7, 7), 21),
        ([1, *range(7, 15 * 7, 7)], 21),  # a line of the first step too
        ([*range(0, 70, 7), *range(21, 56, 7)], 14),  # from step 63 back to 21, of which a line is in the window
        (range(0, 15_000, 1000), 3000),
    ],
)
def test_steps_before_are_steps_and_not_lines(steps, before):
    """15 lines: a fifth of them is looked at, and as many before; with a line every 7 steps that are 21."""
    record = Record()
    for number, step in enumerate(steps):
        record.take(json.dumps(step_line(step, 5.0 - 0.1 * number)).encode())
    assert f"in the {before:,} steps before" in health_of(record, None, 0).words
