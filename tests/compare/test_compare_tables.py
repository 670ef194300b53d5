"""Events that cannot be, and clocks that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.compare_traces import (
    Row,
    by_hand_measured,
    by_hand_predicted,
    changed,
    exact,
    measured,
    refused,
    table,
    write,
)
from tests.profiles import examples
from twin.compare.compare import compare
from twin.description.problems import DescriptionError
from twin.trace.table import SCHEMA

JUMP = 10**9


@pytest.fixture
def predicted(tmp_path) -> Path:
    return write(tmp_path / "p", "predicted", table(by_hand_predicted()))


def test_steps_that_were_cut_off_are_dropped(tmp_path, predicted):
    short = by_hand_measured(later=1000)
    short[1].pop()
    found = exact(compare(predicted, measured(tmp_path, table(by_hand_measured()), table(short, step=1))))
    assert found.steps == (0,)
    assert "step 1 of the second trace" in found.warnings[0]
    assert "rank 1 has 3 of 4 ops" in found.warnings[0]
    only = write(tmp_path / "only", "measured", table(short))
    assert "has no whole step" in refused(predicted, only)


def test_steps_with_other_ops_are_dropped(tmp_path, predicted):
    runs = []
    for number in range(3):
        ranks = by_hand_measured(later=1000 * number)
        if number == 1:
            ranks = {r: rows[:1] for r, rows in ranks.items()}
        runs.append(table(ranks, step=number))
    found = exact(compare(predicted, measured(tmp_path, *runs)))
    assert found.steps == (0, 2)
    assert "its ops are not those of step 0" in found.warnings[0]


def test_a_clock_that_jumped_is_seen(tmp_path, predicted):
    """Rank 1's collective lies a second late, behind its wait; or its arrival lies behind rank 0's start."""
    late = changed(by_hand_measured(), "all_reduce_x", only=1, arrival=120 + JUMP, start=120 + JUMP, end=126 + JUMP)
    message = refused(predicted, measured(tmp_path, table(late)))
    assert "clocks jumped" in message
    assert "disagree by 1 s" in message
    early = changed(by_hand_measured(), "all_reduce_x", only=0, start=114)
    assert "clocks jumped" in refused(predicted, write(tmp_path / "e", "measured", table(early)))
    both = write(tmp_path / "b", "measured", table(late), table(by_hand_measured(later=3 * JUMP), step=1))
    found = exact(compare(predicted, both))
    assert (found.step, found.steps) == (1, (1,))
    assert "step 0" in found.warnings[0]


def test_small_disagreements_make_terms_uncertain(tmp_path, predicted):
    """Rank 0's wait ends 2 ns before its collective: 2 ns is all that is known of skew and transfer."""
    off = changed(by_hand_measured(), "all_reduce_x/wait", only=0, end=124)
    found = exact(compare(predicted, measured(tmp_path, table(off))))
    assert (found.clock.said_ns, found.clock.uncertainty_ns) == (0, 2)
    assert "collectives end up to 0.0 µs behind" in found.warnings[0]
    assert [t.name for t in found.terms if t.below_clocks] == ["transfer_x"]
    said = write(tmp_path / "s", "measured", table(by_hand_measured()), clock={"method": "", "uncertainty_ns": 3})
    assert {t.name for t in compare(predicted, said).terms if t.below_clocks} == {
        "skew_x",
        "transfer_x",
        "before",
        "after",
    }


def test_steps_in_the_wrong_order_are_refused(tmp_path, predicted):
    tables = table(by_hand_measured(later=1000), step=0), table(by_hand_measured(), step=1)
    assert "begin step 1 before they are through with step 0" in refused(predicted, measured(tmp_path, *tables))


ODD = Row("micro0/fwd/odd", "compute", 200, 210)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (changed(by_hand_measured(), "normalize", end=1), "end before they start"),
        (changed(by_hand_measured(), "normalize", start=112, end=140), "overlap another one"),
        (changed(by_hand_measured(), "normalize", bytes=float("nan")), "bytes that are negative, NaN or infinite"),
        (changed(by_hand_measured(), "normalize", end=10**17), "thousand days"),
        (changed(by_hand_measured(), "gemm", start=-5), "before the run"),
        (changed(by_hand_measured(), "all_reduce_x", arrival=10**6), "start before their rank arrives"),
        (changed(by_hand_measured(), "normalize", kind="sleep"), "unknown kind"),
        (changed(by_hand_measured(), "all_reduce_x", stream="compute"), "wrong stream"),
        (changed(by_hand_measured(), "/wait", axis=None), "over no axis"),
        (changed(by_hand_measured(), "normalize", op="micro0/fwd/qkv/gemm"), "rank and op of another"),
        (changed(by_hand_measured(), "all_reduce_x", op="micro0/fwd/other"), "waits for a collective that is not"),
        (changed(by_hand_measured(), "normalize", only=1, phase="bwd"), "differ in phase"),
        (changed(by_hand_measured(), "normalize", phase="bwd"), "is a compute on compute in phase fwd in the first"),
        (
            {
                r: [*rows[:1], *(replace(ODD, op=f"{ODD.op}{i}", start=200 + i, end=201 + i) for i in range(9))]
                for r, rows in by_hand_measured().items()
            },
            "different programs",
        ),
        ({}, "has no events"),
    ],
)
def test_tables_that_make_no_sense_are_refused(tmp_path, predicted, ranks, words):
    assert words in refused(predicted, measured(tmp_path, table(ranks)))


TIMES = st.one_of(st.integers(-5, 200), st.integers(-(2**63), 2**63 - 1))
CHANGE = st.tuples(
    st.sampled_from(["start_ns", "end_ns", "arrival_ns", "rank", "step", "bytes"]), st.integers(0, 15), TIMES
)


@examples(0.3)
@given(st.lists(CHANGE, min_size=1, max_size=3))
def test_any_numbers_are_refused_or_explained_exactly(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("numbers")
    predicted = write(folder / "p", "predicted", table(by_hand_predicted()))
    rows = pa.concat_tables([table(by_hand_measured()), table(by_hand_measured(later=500), step=1)]).to_pylist()
    for column, row, value in changes:
        rows[row][column] = value if column.endswith("_ns") else value % 2**31
    try:
        found = compare(predicted, write(folder / "m", "measured", pa.Table.from_pylist(rows, SCHEMA)))
    except DescriptionError:
        return
    exact(found)
