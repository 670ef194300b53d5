"""A program cut into parts: each op is in one, and stretches have one number if their ops are the same."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.engine.plans import SINGLES, Cuts
from twin.engine.program import Ops, Program, Repeated

kinds = st.lists(st.integers(0, 3), max_size=8)


@given(kinds, kinds.filter(bool), st.integers(1, 5), st.integers(1, 4), kinds)
@examples()
def test_stretches_are_numbered_by_their_ops(before, inner, inner_count, count, behind) -> None:
    """Ops 0 are gone through one by one; a round, with a round inside, comes again."""
    round_ = [*inner * inner_count, 0, 2, *before[:3]]
    which = [*before, *round_ * count, *behind]
    ops = Ops()
    ops.which = array("i", which)
    repeats = [Repeated(len(before), len(inner), inner_count), Repeated(len(before), len(round_), count)]
    size = len(which)
    columns = (array("b", bytes(size)), array("d"), array("i", bytes(4 * size)))
    program = Program(ops, *columns, array("d"), [], repeats)
    cuts = Cuts.of(program, np.flatnonzero(np.array(which) == 0))
    seen: dict[tuple[int, ...], int] = {}
    places, op = 0, 0
    for first, stop, number, shift in zip(cuts.firsts, cuts.stops, cuts.numbers, cuts.shifts, strict=True):
        assert first == op < stop
        own, op = tuple(which[first:stop]), stop
        if number == SINGLES:
            assert set(own) == {0}
            assert first + shift == places
            places += len(own)
        else:
            assert 0 not in own
            assert number == seen.setdefault(own, len(seen))
            assert stop + shift == places
    assert op == size
    assert [tuple(which[first:stop]) for first, stop in cuts.distinct] == list(seen)
