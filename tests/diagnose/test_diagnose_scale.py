"""Slow devices and NICs among 8,192 simulated ranks, with the machine's own spread and noise."""

from __future__ import annotations

import pytest

from tests.diagnose.faulty_cases import Kind, diagnosed, drawn, verdict


def named(number: int, kind: Kind | None = None) -> tuple[bool, bool, int]:
    """Whether the culprit was named by one step alone, and with a reference; healthy parts that were."""
    case = drawn(number, kind)
    alone, referred, after = diagnosed(case)
    by_one, wrong = verdict(case, alone, after)
    by_two, more = verdict(case, referred, after)
    return by_one, by_two, wrong + more


@pytest.mark.full
@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_among_8192_is_found(number):
    _, found, wrong = named(number)
    assert found
    assert not wrong


@pytest.mark.slow
def test_200_cases():
    """95 % at least are found with a reference, NICs by one step alone as well."""
    answers = {number: named(number) for number in range(200)}
    assert sum(found for _, found, _ in answers.values()) >= 190
    assert sum(alone for number, (alone, _, _) in answers.items() if number % 2) >= 95
    assert sum(wrong > 0 for _, _, wrong in answers.values()) <= 10


@pytest.mark.slow
def test_healthy_runs_are_let_alone():
    assert sum(named(number, "none")[2] > 0 for number in range(40)) <= 2
