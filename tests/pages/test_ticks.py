"""Ticks of logarithmic axes: within the axis, in order, and never so few that nothing can be read."""

from hypothesis import given
from hypothesis import strategies as st

from twin.pages.ticks import FEWEST, log_ticks


@given(least=st.floats(1e-9, 1e9), times=st.floats(1.4, 1e12))
def test_there_are_enough_and_all_lie_on_the_axis(least: float, times: float) -> None:
    most = least * times
    ticks = log_ticks(least, most)
    assert ticks == sorted(set(ticks))
    assert all(least <= tick <= most for tick in ticks)
    assert FEWEST <= len(ticks) <= 14


def test_they_are_as_far_apart_as_that_allows() -> None:
    assert log_ticks(1, 1000) == [1, 10, 100, 1000]
    assert log_ticks(1, 10) == [1, 2, 5, 10]
    assert log_ticks(1, 3) == [1, 1.5, 2, 3]
    assert log_ticks(4, 4) == [4]
