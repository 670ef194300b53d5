"""Rounds are passed over only where what they are compared with is already a round."""

from __future__ import annotations

from array import array

import pytest

from twin.engine import classes
from twin.engine.layout import NOWHERE
from twin.engine.links import Transfer
from twin.engine.program import COMPUTE, START, WAIT, Call, Ops, Program, Repeated
from twin.engine.segments import Segments
from twin.engine.setting import Setting
from twin.schedule.kernels import Memory
from twin.schedule.ops import Compute, Simple, Start, Wait

ROUNDS, BEFORE, COMPUTES = 60, 12, 30
CALLS: list[Call] = [
    ("pair", "send", 1.0),
    ("pair", "send", 2.0),
    ("own", "all_reduce", 9.0),
    ("own", "all_reduce", 1.0),
]
MESSAGE, ANSWER, LONG, SHORT = range(4)
SECONDS = (0.05, 0.05, 5.0, 0.01)
"""Of the calls."""


class _Written:
    """A program, written op by op; equal ops are one."""

    def __init__(self) -> None:
        self.program = Program(Ops(), array("b"), array("d"), array("i"), array("d"), CALLS)
        self._known: dict[tuple[int, float, int], int] = {}

    def _add(self, code: int, amount: float, target: int, op: Simple) -> None:
        ops = self.program.ops
        key = (code, amount, -1 if code == WAIT else target)
        if key not in self._known:
            self._known[key] = len(ops.distinct)
            ops.append(op, {})
            self.program.amounts.append(amount)
            self.program.hosts.append(0.0)
        else:
            ops.which.append(self._known[key])
        self.program.code.append(code)
        self.program.target.append(target)

    def compute(self, seconds: float) -> None:
        for _ in range(COMPUTES):
            self._add(COMPUTE, seconds, -1, Compute("work", "fwd", Memory(0.0)))

    def start(self, call: int) -> int:
        self._add(START, 0.0, call, Start(f"{call}", "fwd", CALLS[call][1], CALLS[call][0], 1.0))
        return len(self.program) - 1

    def wait(self, start: int) -> None:
        self._add(WAIT, 0.0, start, Wait("wait", "fwd"))

    def exchange(self, call: int) -> None:
        self.wait(self.start(call))


def _asking(rounds: int) -> Program:
    written = _Written()
    for _ in range(BEFORE):
        written.exchange(MESSAGE)
    for _ in range(rounds):
        written.compute(0.1)
        written.exchange(MESSAGE)
        first, second = written.start(MESSAGE), written.start(ANSWER)
        written.wait(first)
        written.wait(second)
    length = COMPUTES + 6
    written.program.repeats.append(Repeated(2 * BEFORE, length, rounds))
    return written.program


def _answering(rounds: int) -> Program:
    """The first round has a long collective of its own in place of a short one."""
    written = _Written()
    for _ in range(BEFORE):
        written.exchange(MESSAGE)
    for number in range(rounds):
        written.exchange(MESSAGE)
        own = written.start(SHORT if number else LONG)
        written.compute(0.01)
        first = written.start(MESSAGE)
        written.wait(own)
        second = written.start(ANSWER)
        written.wait(first)
        written.wait(second)
    length = COMPUTES + 8
    written.program.repeats.append(Repeated(2 * BEFORE + length, length, rounds - 1))
    return written.program


def test_a_first_round_that_is_longer_is_no_round() -> None:
    """One rank's rounds begin when the other's first one, which is unlike the rest, is still to come.

    A round is as long as the asking rank's compute, a message before it is answered, and a message behind that; the
    first one waits for the long collective.
    """
    programs = [_asking(ROUNDS), _answering(ROUNDS)]
    setting = Setting(
        group_class={"pair": [0, 0], "own": [NOWHERE, 0]},
        members={"pair": [(0, 1)], "own": [(1,)]},
        transfers=[[Transfer(0.0, seconds, (), 1.0)] for seconds in SECONDS],
        capacity=[],
        slowness=[1.0, 1.0],
        compute_slowdown=0.0,
        collective_slowdown=0.0,
        role=[0, 1],
    )
    segments = Segments.of(programs, setting)
    assert segments is not None
    message, answer, long, _ = SECONDS
    others = COMPUTES * 0.1 + 2 * message + answer + COMPUTES * 0.01
    expected = BEFORE * message + ROUNDS * others + (long - COMPUTES * 0.01 - message)
    for periods in (True, False):
        step = max(line.step_seconds for line in classes.run(programs, setting, segments, periods=periods))
        assert step == pytest.approx(expected, rel=1e-9), periods
