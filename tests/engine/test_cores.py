"""Ranks that share CPU cores, against closed forms worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_des import Step, alone, program, setting
from twin.engine.des import Timeline, run
from twin.engine.links import Transfer
from twin.engine.sharing import Flow, assign_speeds

CORES = 0
"""Number of the only resource."""


def on_cores(
    steps: Sequence[Step], slowness: Sequence[float], cores: float, transfers: Sequence[Transfer] = (), **changes: float
) -> Timeline:
    """Run ranks that all share so many cores."""
    made = program(steps)
    usual = setting(made, transfers, slowness, capacity=[cores], **changes)
    use = [((CORES, 1.0),) for _ in slowness]
    return run([made], replace(usual, core_use=use, cores=frozenset({CORES})))[0]


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
