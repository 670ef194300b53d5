"""The SimPy engine on hand-made programs, against closed forms worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.engine import des
from twin.engine.links import Transfer
from twin.engine.program import COMPUTE, START, WAIT, Ops, Program
from twin.engine.setting import Setting, Timeline

Step = tuple[str, float] | tuple[str, str] | tuple[str, str, str]
COMMUNICATORS = ("x", "y", "z_gather", "z_scatter", "data")


def all_apart(count: int) -> Ops:
    """Return as many ops, of which no two are alike."""
    ops = Ops()
    ops.which.extend(range(count))
    return ops


def program(steps: Sequence[Step], host: Sequence[float] | None = None) -> Program:
    """Write a program: ("compute", s), ("start", handle, communicator), ("wait", handle).

    Every start is a call of its own; call numbers go up in program order.
    """
    made = Program(all_apart(len(steps)), [], [], [], list(host or [0.0] * len(steps)), [])
    handles: dict[str, int] = {}
    for number, step in enumerate(steps):
        amount, target = 0.0, -1
        if step[0] == "compute":
            code, amount = COMPUTE, float(step[1])
        elif step[0] == "start":
            code, target = START, len(made.calls)
            made.calls.append((step[2], "all_reduce", 1.0))  # type: ignore[misc]
            handles[str(step[1])] = number
        else:
            code, target = WAIT, handles[str(step[1])]
        made.code.append(code)
        made.amounts.append(amount)
        made.target.append(target)
    return made


def setting(
    made: Program,
    transfers: Sequence[Transfer],
    slowness: Sequence[float] = (1.0,),
    *,
    capacity: Sequence[float] = (),
    compute: float = 0.0,
    collective: float = 0.0,
) -> Setting:
    """All rank classes meet in one group of each communicator."""
    everyone = tuple(range(len(slowness)))
    used = {communicator for communicator, _, _ in made.calls}
    return Setting(
        group_class={c: [0] * len(slowness) for c in used},
        members={c: [everyone] for c in used},
        transfers=[[t] for t in transfers],
        capacity=list(capacity),
        slowness=list(slowness),
        compute_slowdown=compute,
        collective_slowdown=collective,
    )


def alone(transfer: float, startup: float = 0.0) -> Transfer:
    """A collective that shares no link."""
    return Transfer(startup, transfer, (), 0.0)


def run(
    steps: Sequence[Step],
    transfers: Sequence[Transfer] = (),
    slowness: Sequence[float] = (1.0,),
    host: Sequence[float] | None = None,
    **options: float,
) -> Timeline:
    made = program(steps, host)
    return des.run([made], setting(made, transfers, slowness, **options))[0]


def test_compute_is_one_op_after_the_other() -> None:
    timeline = run([("compute", 1.0), ("compute", 0.0), ("compute", 2.5)])
    assert timeline.start[0].tolist() == [0.0, 1.0, 1.0]
    assert timeline.end[0].tolist() == [1.0, 1.0, 3.5]
    assert timeline.step_seconds == 3.5


def test_the_device_waits_for_the_host() -> None:
    """Op i starts when the host has issued ops 0 to i, or when the device is free."""
    timeline = run([("compute", 1.0), ("compute", 1.0), ("compute", 9.0), ("compute", 1.0)], host=[0.5, 3.0, 0.1, 0.1])
    assert timeline.start[0].tolist() == pytest.approx([0.5, 3.5, 4.5, 13.5])


def test_a_collective_starts_when_its_last_member_arrives() -> None:
    timeline = run(
        [("compute", 2.0), ("start", "a", "x"), ("wait", "a"), ("compute", 1.0)],
        [alone(5.0, startup=0.25)],
        slowness=[1.0, 3.0, 1.5],
    )
    assert timeline.arrival[:, 1].tolist() == [2.0, 6.0, 3.0]
    assert timeline.start[:, 1].tolist() == [6.0] * 3
    assert timeline.end[:, 1].tolist() == [11.25] * 3
    assert timeline.start[:, 2].tolist() == [2.0, 6.0, 3.0]
    assert timeline.end[:, 2].tolist() == [11.25] * 3
    assert timeline.end[:, 3].tolist() == [12.25, 14.25, 12.75]


def test_one_communicator_is_a_queue_and_two_are_not() -> None:
    steps = [("start", "a", "x"), ("start", "b", "x"), ("start", "c", "y"), ("wait", "b"), ("wait", "c"), ("wait", "a")]
    timeline = run(steps, [alone(2.0), alone(3.0), alone(4.0)])
    assert timeline.start[0, :3].tolist() == [0.0, 2.0, 0.0]
    assert timeline.end[0].tolist() == [2.0, 5.0, 4.0, 5.0, 5.0, 5.0]


def test_a_wait_for_what_is_done_takes_no_time() -> None:
    timeline = run([("start", "a", "x"), ("compute", 7.0), ("wait", "a"), ("compute", 1.0)], [alone(2.0)])
    assert timeline.start[0, 2] == timeline.end[0, 2] == 7.0
    assert timeline.step_seconds == 8.0


@given(compute=st.floats(0.01, 10), startup=st.floats(0, 2), transfer=st.floats(0.01, 10), slow=st.floats(0, 1))
@examples(1.5, derandomize=True)
def test_compute_slows_while_a_collective_runs(compute, startup, transfer, slow) -> None:
    """Beside T seconds of collective, T/(1 + s) seconds of compute get done."""
    timeline = run([("start", "a", "x"), ("compute", compute), ("wait", "a")], [alone(transfer, startup)], compute=slow)
    both = startup + transfer
    done = both / (1 + slow)
    ends = both + (compute - done) if done < compute else compute * (1 + slow)
    assert timeline.end[0, 1] == pytest.approx(ends)
    assert timeline.end[0, 0] == pytest.approx(both)


@given(compute=st.floats(0.01, 10), transfer=st.floats(0.01, 10), slow=st.floats(0, 1), lag=st.floats(0, 2))
@examples(1.5, derandomize=True)
def test_a_collective_slows_while_its_member_computes(compute, transfer, slow, lag) -> None:
    """At speed 1/(1 + q) beside compute, at full speed once the stream stands in the wait."""
    timeline = run(
        [("start", "a", "x"), ("compute", compute), ("compute", lag), ("wait", "a")],
        [alone(transfer)],
        compute=slow,
        collective=0.7,
    )
    busy = (compute + lag) * (1 + slow)
    moved = busy / 1.7
    ends = transfer * 1.7 if moved >= transfer else busy + transfer - moved
    assert timeline.end[0, 0] == pytest.approx(ends)


def test_a_collective_slows_again_when_a_wait_is_over() -> None:
    """b moves 1 s during the wait for a, 3/(1 + q) beside the compute, the rest at full speed."""
    steps = [("start", "a", "x"), ("start", "b", "y"), ("wait", "a"), ("compute", 3.0), ("wait", "b")]
    timeline = run(steps, [alone(1.0), alone(10.0)], collective=0.5)
    assert timeline.end[0].tolist() == pytest.approx([1.0, 11.0, 1.0, 4.0, 11.0])


def test_one_computing_member_slows_the_collective_for_all() -> None:
    """Member 0 waits at once; member 1 computes 3 s: 3/(1 + q) of the transfer by then."""
    made = program([("start", "a", "x"), ("compute", 1.0), ("wait", "a")])
    (timeline,) = des.run([made], setting(made, [alone(10.0)], [1e-9, 3.0], collective=0.5))
    assert timeline.end[:, 0].tolist() == pytest.approx([3.0 + 10.0 - 2.0] * 2)


def test_compute_slows_for_each_member_from_start_to_end_only() -> None:
    """Two overlapping collectives slow compute no more than one does."""
    steps = [
        ("compute", 1.0),
        ("start", "a", "x"),
        ("start", "b", "y"),
        ("compute", 10.0),
        ("wait", "a"),
        ("wait", "b"),
    ]
    timeline = run(steps, [alone(2.0), alone(6.0)], compute=0.5)
    assert timeline.end[0, 3] == pytest.approx(1.0 + 6.0 + (10.0 - 6.0 / 1.5))


chains = st.lists(st.tuples(st.sampled_from(COMMUNICATORS), st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=8)


@given(chain=chains, slowness=st.lists(st.floats(1, 3), min_size=1, max_size=4), waits=st.randoms())
@examples(derandomize=True)
def test_against_the_recurrence_of_queues(chain, slowness, waits) -> None:
    """Without sharing and interference every time follows from maxima and sums."""
    steps: list[Step] = []
    open_: list[str] = []
    for i, (communicator, compute, _) in enumerate(chain):
        steps += [("compute", compute), ("start", str(i), communicator)]
        open_.append(str(i))
        waits.shuffle(open_)
        for _ in range(waits.randint(0, len(open_))):
            steps.append(("wait", open_.pop()))
    steps += [("wait", handle) for handle in open_]
    timeline = run(steps, [alone(t) for _, _, t in chain], slowness)
    now = np.zeros(len(slowness))
    free = dict.fromkeys(COMMUNICATORS, 0.0)
    done: dict[str, float] = {}
    for i, step in enumerate(steps):
        assert timeline.arrival[:, i] == pytest.approx(now)
        if step[0] == "compute":
            now = now + np.array(slowness) * float(step[1])
            assert timeline.end[:, i] == pytest.approx(now)
        elif step[0] == "start":
            communicator = str(step[2])
            begin = max(free[communicator], now.max())
            free[communicator] = done[str(step[1])] = begin + chain[int(str(step[1]))][2]
            assert timeline.start[:, i] == pytest.approx(begin)
            assert timeline.end[:, i] == pytest.approx(done[str(step[1])])
        else:
            now = np.maximum(now, done[str(step[1])])
            assert timeline.end[:, i] == pytest.approx(now)


def test_same_program_same_times_to_the_bit() -> None:
    steps = [("compute", 0.1), ("start", "a", "x"), ("start", "b", "y"), ("compute", 0.3), ("wait", "a"), ("wait", "b")]
    flows = [Transfer(0.0, 1.0, ((0, 7.0),), 7.0), Transfer(0.01, 0.7, ((0, 5.0),), 5.0)]
    one, two = (run(steps, flows, [1.0, 1.1], capacity=[9.0], compute=0.19, collective=0.3) for _ in range(2))
    assert one.start.tobytes() == two.start.tobytes()
    assert one.end.tobytes() == two.end.tobytes()
