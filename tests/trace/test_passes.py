"""Passes of a rank: which of them are at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.trace.passes import Passes


def passes(start: list[float], end: list[float]) -> Passes:
    count = len(start)
    numbers = np.arange(count)
    return Passes(("F",) * count, 0 * numbers, numbers, np.array(start), np.array(end), np.zeros(count))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([1e-6, 1.0, 100.0]),
    st.randoms(use_true_random=False),
)
@examples()
def test_passes_at_once_share_more_than_rounding(lengths, unit, chance) -> None:
    """Each pass follows the one before, or begins half a unit before that ends; all times are rounded."""
    at, previous = 0.0, False
    start, end, expected = [], [], [0] * len(lengths)
    for number, (units, wanted) in enumerate(lengths):
        early = wanted and number > 0 and not previous
        at -= 0.5 * early
        start.append(unit * at * (1.0 + chance.randint(-8, 8) * 2.0**-52))
        at += units
        end.append(unit * at * (1.0 + chance.randint(-8, 8) * 2.0**-52))
        if early:
            expected[number - 1 : number + 1] = [1, 2]
        previous = early
    assert passes(start, end).side.tolist() == expected


@pytest.mark.parametrize(("shared", "sides"), [(0, [0, 0]), (1, [0, 0]), (1000, [1, 2])])
def test_a_table_has_whole_nanoseconds(shared: int, sides: list[int]) -> None:
    """Of times that are equal but for rounding, one may be a nanosecond later."""
    ended = 3_000_000_001
    found = passes([0.0, (ended - shared) * 1e-9], [ended * 1e-9, 4.0])
    assert found.side.tolist() == sides
