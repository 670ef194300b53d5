"""Ranks that share CPU cores, against closed forms worked out by hand."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_des import Step, alone, program, setting
from twin.description.load import load_machine
from twin.description.machine import Cores
from twin.description.parameter import Parameter
from twin.engine.des import Timeline, run
from twin.engine.links import Transfer
from twin.engine.program import START
from twin.engine.sharing import Flow, assign_speeds
from twin.engine.turns import Turns, turns_of, work_until_wait
from twin.schedule.communicator import Communicator

CORES = 0
"""Number of the only resource."""


def on_cores(
    steps: Sequence[Step],
    slowness: Sequence[float],
    cores: float,
    transfers: Sequence[Transfer] = (),
    *,
    turns: Turns | None = None,
    at_once: int = 1,
    issue: float = 0.0,
    link: float = 1.0,
) -> Timeline:
    """Run ranks that all share so many cores and a link; starting a collective takes `issue` of a core."""
    made = program(steps)
    made.amounts[:] = [issue if code == START else own for code, own in zip(made.code, made.amounts, strict=True)]
    usual = setting(made, transfers, slowness, capacity=[cores, link])
    use = [((CORES, 1.0),) for _ in slowness]
    shared = replace(usual, core_use=use, cores=frozenset({CORES}), turns=turns or Turns(), at_once=at_once)
    return run([made], shared)[0]


def test_eight_ranks_on_two_cores_take_four_times_as_long():
    timeline = on_cores([("compute", 3.0), ("compute", 1.0)], [1.0] * 8, 2)
    assert timeline.end[:, 0] == pytest.approx([12.0] * 8)
    assert timeline.end[:, 1] == pytest.approx([16.0] * 8)


def test_no_rank_is_faster_than_one_core():
    timeline = on_cores([("compute", 3.0)], [1.0, 2.0], 5)
    assert timeline.end[:, 0] == pytest.approx([3.0, 6.0])


def test_who_is_left_gets_the_core_to_itself():
    # work of 1 s and 3 s on one core: side by side until 2 s, then 2 s of work alone
    timeline = on_cores([("compute", 1.0)], [1.0, 3.0], 1)
    assert timeline.end[:, 0] == pytest.approx([2.0, 4.0])


def test_a_rank_that_waits_leaves_its_core_to_others():
    # rank 0 arrives after 1 s of work, rank 1 after 3 s; the collective needs no core
    steps: list[Step] = [("compute", 1.0), ("start", "a", "x"), ("wait", "a"), ("compute", 2.0)]
    timeline = on_cores(steps, [1.0, 3.0], 1, [alone(5.0)])
    assert timeline.start[:, 1] == pytest.approx([4.0, 4.0])
    assert timeline.end[:, 2] == pytest.approx([9.0, 9.0])
    # then 2 s and 6 s of work: side by side for 4 s, the last 4 s alone
    assert timeline.end[:, 3] == pytest.approx([13.0, 17.0])


def test_a_collective_beside_compute_takes_its_part_of_the_core():
    # one core; the collective's two members keep a tenth of a core busy each
    collective = Transfer(0.0, 5.0, ((CORES, 0.2),), 0.0, core_rate=0.1)
    steps: list[Step] = [("start", "a", "x"), ("compute", 4.0), ("wait", "a")]
    timeline = on_cores(steps, [1.0, 1.0], 1, [collective])
    # 5 s at (1 − 0.2)/2 each, the remaining 2 s of work at 1/2
    assert timeline.end[:, 0] == pytest.approx([5.0, 5.0])
    assert timeline.end[:, 1] == pytest.approx([9.0, 9.0])


def test_a_hungry_collective_gets_an_equal_share_at_most():
    # each member would keep a whole core busy: four threads on one core
    collective = Transfer(0.0, 1.0, ((CORES, 2.0),), 0.0, core_rate=1.0)
    steps: list[Step] = [("start", "a", "x"), ("compute", 1.0), ("wait", "a")]
    timeline = on_cores(steps, [1.0, 1.0], 1, [collective])
    assert timeline.end[:, 0] == pytest.approx([4.0, 4.0])
    assert timeline.end[:, 1] == pytest.approx([4.0, 4.0])


def test_what_a_narrow_link_holds_up_leaves_cores_to_compute():
    link = 1
    # the link lets the collective run at a quarter of its speed, so it needs a quarter of its cores
    flows = [
        Flow([(CORES, 1.0)], 0.0, core_rate=1.0),
        Flow([(CORES, 1.0)], 0.0, core_rate=1.0),
        Flow([(CORES, 0.8), (link, 4.0)], 4.0, core_rate=0.4),
    ]
    assign_speeds(flows, [1.0, 1.0], cores={CORES})
    assert [flow.speed for flow in flows] == pytest.approx([0.4, 0.4, 0.25])


TURNS = Turns(4.0, {"x": 1.0})
"""Of 4 s; two ranks on one core, so that the last member of a group has one turn before it."""


@pytest.mark.parametrize(("work", "late"), [(1.0, 1.0), (3.0, 3.0), (9.0, 4.0)])
def test_who_shares_a_core_comes_later_to_what_runs_beside_its_work(work, late):
    # the first member works until it waits, or until its turn is over, before the second comes to the start
    steps: list[Step] = [("start", "a", "x"), ("compute", work), ("wait", "a")]
    timeline = on_cores(steps, [1.0, 1.0], 1, [alone(5.0)], turns=TURNS)
    assert timeline.start[:, 0] == pytest.approx([late, late])
    assert timeline.arrival[:, 0] == pytest.approx([late, late])
    assert timeline.end[:, 1] == pytest.approx([2 * work, 2 * work])
    assert timeline.end[:, 2] == pytest.approx([max(2 * work, late + 5.0)] * 2)


def test_what_is_left_of_a_turn_is_all_that_others_wait_for():
    # 3 s of 4 are over: 1 s is left; what follows the wait that was waited for begins a turn of its own
    steps: list[Step] = [
        ("compute", 3.0),
        ("start", "a", "x"),
        ("compute", 3.0),
        ("wait", "a"),
        ("start", "b", "x"),
        ("compute", 3.0),
        ("wait", "b"),
    ]
    timeline = on_cores(steps, [1.0, 1.0], 1, [alone(50.0), alone(1.0)], turns=TURNS)
    assert timeline.start[:, 1] == pytest.approx([7.0, 7.0])
    assert timeline.end[:, 3] == pytest.approx([57.0, 57.0])
    assert timeline.start[:, 4] == pytest.approx([60.0, 60.0])


def test_what_is_waited_for_at_once_is_not_late_and_starts_keep_their_order():
    steps: list[Step] = [("start", "a", "x"), ("wait", "a"), ("compute", 1.0)]
    timeline = on_cores(steps, [1.0, 1.0], 1, [alone(5.0)], turns=TURNS)
    assert timeline.start[:, 0] == pytest.approx([0.0, 0.0])
    steps = [("start", "a", "x"), ("compute", 3.0), ("start", "b", "y"), ("wait", "b"), ("wait", "a")]
    timeline = on_cores(steps, [1.0, 1.0], 1, [alone(5.0), alone(1.0)], turns=Turns(9.0, {"x": 3.0, "y": 0.0}))
    assert timeline.start[:, 0] == pytest.approx([9.0, 9.0])
    assert timeline.start[:, 2] == pytest.approx([9.0, 9.0])  # a rank comes to its starts one after the other


def test_what_starting_takes_is_part_of_a_turn():
    # 3.5 s of 4 are over when the start has been issued: half a second is left
    steps: list[Step] = [("compute", 3.0), ("start", "a", "x"), ("compute", 3.0), ("wait", "a")]
    timeline = on_cores(steps, [1.0, 1.0], 1, [alone(5.0)], turns=TURNS, issue=0.5)
    assert timeline.start[:, 1] == pytest.approx([7.5, 7.5])


def test_work_until_the_next_wait():
    steps: list[Step] = [
        ("compute", 1.0),
        ("start", "a", "x"),
        ("compute", 2.0),
        ("wait", "a"),
        ("compute", 4.0),
        ("compute", 8.0),
    ]
    assert work_until_wait(program(steps)).tolist() == [2.0, 2.0, 0.0, 12.0, 8.0, 0.0]


def test_those_at_once_are_told_in_the_order_in_which_they_began():
    # as the runtime's traces have them: the second ends first, and is told at the first one's end
    transfers = [Transfer(0.0, seconds, (), 0.0) for seconds in (10.0, 3.0, 3.0)]
    steps: list[Step] = [("start", "a", "x"), ("start", "b", "x"), ("wait", "b"), ("start", "c", "x"), ("wait", "c")]
    timeline = on_cores(steps, [1.0, 1.0], 2, transfers, at_once=2)
    assert timeline.end[0, 2] == pytest.approx(3.0)  # who waits knows better
    assert timeline.end[0, 4] == pytest.approx(6.0)
    starts = [0, 1, 3]
    assert timeline.start[0, starts] == pytest.approx([0.0, 10.0, 10.0])
    assert timeline.end[0, starts] == pytest.approx([10.0, 10.0, 10.0])


@pytest.mark.parametrize(("at_once", "ends"), [(1, (1.0, 2.0)), (2, (2.0, 2.0))])
def test_threads_run_collectives_of_a_communicator_at_once(at_once, ends):
    # each would fill the link alone for 1 s
    link = Transfer(0.0, 1.0, ((1, 1.0),), 1.0)
    steps: list[Step] = [("start", "a", "x"), ("start", "b", "x"), ("wait", "a"), ("wait", "b")]
    timeline = on_cores(steps, [1.0, 1.0], 2, [link, link], at_once=at_once)
    assert timeline.end[0, :2] == pytest.approx(ends)
    assert timeline.start[0, 1] >= timeline.end[0, 0]  # told one behind the other


@given(size=st.integers(1, 12), ranks=st.integers(1, 12))
def test_where_the_last_of_a_group_comes_in_a_queue(size, ranks):
    """Against the mean over all sets of places."""
    if size > ranks:
        return
    cores = Cores(count=Parameter(1.0), shared_by="machine", turn_seconds=Parameter(1.0))
    machine = load_machine("laptop").model_copy(update={"cores": cores})
    group = Communicator.of("x", np.arange(size)[None, :])
    found = turns_of(machine, ranks, {"x": group}).before_last["x"]
    last = np.mean([max(places) for places in itertools.combinations(range(ranks), size)])
    assert found == pytest.approx(last)
    assert not turns_of(machine, ranks, {"x": group}, roles=2).before_last


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.floats(0.1, 1.0)), min_size=1, max_size=9), st.floats(0.3, 6.0))
def test_cores_are_shared_out_fairly_and_entirely(threads, cores):
    flows = [Flow([(CORES, rate)], 0.0, limit, core_rate=rate) for rate, limit in threads]
    assign_speeds(flows, [cores], cores={CORES})
    used = [flow.speed * flow.core_rate for flow in flows]
    wanted = [flow.limit * flow.core_rate for flow in flows]
    assert sum(used) <= cores * (1 + 1e-9)
    assert sum(used) == pytest.approx(min(cores, sum(wanted)))  # no core idle while one wants it
    level = max(used)
    for got, want in zip(used, wanted, strict=True):
        assert got == pytest.approx(min(want, level))  # all get as much as anybody, or all they want
