"""Speeds on links that are shared out piece by piece are those of progressive filling over everything at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.engine.clock import Clock
from twin.engine.links import ActiveFlow, Links, Transfer
from twin.engine.sharing import Flow, assign_speeds

LINKS = 6
Arrival = tuple[float, Transfer, float, float | None]
"""When a transfer comes, what it is, its limit, and the one it gets later."""
rates = st.sampled_from([1.0, 2.0, 3.0, 5.0, 10.0])
transfers = st.builds(
    lambda seconds, on: Transfer(0.0, seconds, tuple(on.items()), max(on.values(), default=0.0)),
    st.floats(0.1, 5.0),
    st.dictionaries(st.integers(0, LINKS - 1), rates, max_size=3),
)
arrivals = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]),
        transfers,
        st.sampled_from([0.8, 1.0]),
        st.none() | st.sampled_from([0.25, 0.5]),
    ),
    min_size=1,
    max_size=12,
)


def beginner(
    clock: Clock, links: Links, arrivals: list[Arrival], moving: dict[int, ActiveFlow], finish: Callable[[int], None]
) -> Callable[[int, int], None]:
    """Make what lets a transfer begin, and gives it another limit a while later if it has one."""

    def begin(number: int, _plan: int) -> None:
        _, transfer, limit, later = arrivals[number]
        moving[number] = links.begin(transfer, limit, lambda: finish(number))
        if later is not None:
            clock.after(0.3, change, number)

    def change(number: int, _plan: int) -> None:
        if number in moving:
            limit = arrivals[number][3]
            assert limit is not None
            links.limit(moving[number], limit)

    return begin


@given(capacity=st.lists(st.sampled_from([4.0, 10.0, 25.0]), min_size=LINKS, max_size=LINKS), arrivals=arrivals)
@examples(1.0)
def test_speeds_are_those_of_filling_all_links_at_once(capacity: list[float], arrivals: list[Arrival]) -> None:
    """Flows come at equal and at different times, change their limits, and go."""
    clock, moving = Clock(), dict[int, ActiveFlow]()
    links = Links(clock, capacity)

    def look(_subject: object, _plan: int) -> None:
        everything = [Flow(flow.demands, flow.peak_rate, flow.limit) for flow in moving.values()]
        assign_speeds(everything, capacity)
        found = [flow.speed for flow in moving.values()]
        assert found == pytest.approx([flow.speed for flow in everything], rel=1e-9)

    def finish(number: int) -> None:
        del moving[number]
        clock.after(1e-6, look, None)

    begin = beginner(clock, links, arrivals, moving, finish)
    for number, (time, *_) in enumerate(arrivals):
        clock.at(time, begin, number)
        clock.at(time + 1e-6, look, None)
        clock.at(time + 0.3 + 1e-6, look, None)
    clock.run()
    assert not moving


@given(arrivals=arrivals)
@examples(0.5)
def test_what_begins_moves_all_its_bytes(arrivals: list[Arrival]) -> None:
    """A link carries no more than it has room for, and each transfer ends no sooner than alone."""
    clock, ends = Clock(), dict[int, float]()
    capacity = [10.0] * LINKS
    links = Links(clock, capacity)

    def begin(number: int, _plan: int) -> None:
        _, transfer, limit, _ = arrivals[number]
        links.begin(transfer, limit, lambda: ends.setdefault(number, clock.now))

    for number, (time, *_) in enumerate(arrivals):
        clock.at(time, begin, number)
    clock.run()
    assert len(ends) == len(arrivals)
    for number, (time, transfer, limit, _) in enumerate(arrivals):
        assert ends[number] >= (time + transfer.transfer_seconds / limit) * (1 - 1e-9)
    for resource, room in enumerate(capacity):
        moved = sum(rate * t.transfer_seconds for _, t, *_ in arrivals for on, rate in t.demands if on == resource)
        busy = [ends[i] for i, (_, t, *_) in enumerate(arrivals) if any(on == resource for on, _ in t.demands)]
        if busy:
            first = min(t for t, flow, *_ in arrivals if any(on == resource for on, _ in flow.demands))
            assert moved <= room * (max(busy) - first) * (1 + 1e-9)


@given(
    arrivals=arrivals,
    startups=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.7]), min_size=12, max_size=12),
    ahead=st.lists(st.booleans(), min_size=12, max_size=12),
)
@examples(1.0)
def test_what_is_put_on_its_links_before_it_begins_is_as_if_it_came_when_it_does(
    arrivals: list[Arrival], startups: list[float], ahead: list[bool]
) -> None:
    """Some transfers start up before they begin; those whose limits change never come ahead."""

    def ends(*, early: bool) -> list[tuple[float, float]]:
        clock, found, moving = Clock(), dict[int, tuple[float, float]](), dict[int, ActiveFlow]()
        links = Links(clock, [10.0] * LINKS)

        def finish(number: int) -> None:
            found[number] = clock.now, moving.pop(number).share(clock.now)

        begin = beginner(clock, links, arrivals, moving, finish)

        def come(number: int, _plan: int) -> None:
            _, transfer, limit, later = arrivals[number]
            starting = replace(transfer, startup_seconds=startups[number])
            if early and ahead[number] and later is None:
                moving[number] = links.begin_after_startup(starting, limit, lambda: finish(number))
            else:
                clock.after(startups[number], begin, number)

        for number, (time, *_) in enumerate(arrivals):
            clock.at(time, come, number)
        clock.run()
        return [found[number] for number in range(len(arrivals))]

    assert np.array(ends(early=True)) == pytest.approx(np.array(ends(early=False)), rel=1e-9)
