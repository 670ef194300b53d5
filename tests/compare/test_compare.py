"""The waterfall by hand, and what must hold for any two traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.compare_traces import Row, by_hand_measured, by_hand_predicted, collective, table, write
from tests.profiles import examples
from twin.compare.account import account, terms_of
from twin.compare.compare import Comparison, compare
from twin.compare.steps import read_steps
from twin.strategies.four_d.grid import AXES


def nanoseconds(found: Comparison, part: str = "terms") -> dict[str, tuple[float, float, float]]:
    """(predicted, measured, difference) of each term."""
    return {
        t.name: tuple(round(s * 1e9, 3) for s in (t.predicted_seconds, t.measured_seconds, t.difference_seconds))
        for t in getattr(found, part)
    }


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    return (
        write(tmp_path / "p", "predicted", table(by_hand_predicted())),
        write(tmp_path / "m", "measured", table(by_hand_measured(), step=3)),
    )


def test_the_waterfall_by_hand(pair):
    found = compare(*pair)
    assert (found.predicted_seconds, found.measured_seconds, found.step) == (18e-9, 33e-9, 3)
    assert nanoseconds(found) == {
        "gemm": (10, 12.5, 2.5),  # 12 and 13
        "norm": (3, 2.5, -0.5),
        "skew_x": (0, 3, 3),  # rank 0 comes to the wait at 14, rank 1 to the collective at 20
        "transfer_x": (5, 5.5, 0.5),  # 20 to 26 on rank 0, 21 to 26 on rank 1
        "before": (0, 2.5, 2.5),
        "late": (0, 0.5, 0.5),  # rank 0 goes on at 27
        "between": (0, 4, 4),  # 2 + 3 on rank 0, 3 on rank 1
        "after": (0, 2.5, 2.5),
    }
    assert {t.name for t in found.terms if t.unexplained} == {"late", "between"}
    assert found.warnings == ()


@pytest.mark.parametrize("measured", ["predicted", "measured"])
def test_a_simulated_step_begins_before_its_first_op(tmp_path, measured):
    """By hand: the host takes 4 ns before the first op of a step of 22. A measured one begins with its first op."""
    late = {
        r: [
            replace(row, start=row.start + 4, end=row.end + 4, arrival=None if row.arrival is None else row.arrival + 4)
            for row in rows
        ]
        for r, rows in by_hand_predicted().items()
    }
    found = compare(
        write(tmp_path / "p", "predicted", table(late)), write(tmp_path / "m", measured, table(late), name="other")
    )
    theirs = 22e-9 if measured == "predicted" else 18e-9
    assert (found.predicted_seconds, found.measured_seconds) == (22e-9, theirs)
    assert nanoseconds(found).get("before") == (
        4,
        0 if measured == "measured" else 4,
        -4 if measured == "measured" else 0,
    )
    for terms in (found.terms, found.phases):
        assert sum(term.predicted_seconds for term in terms) == pytest.approx(22e-9)
        assert sum(term.measured_seconds for term in terms) == pytest.approx(theirs)


def test_phases_by_hand(pair):
    assert nanoseconds(compare(*pair), "phases") == {
        "before": (0, 2.5, 2.5),
        "fwd": (18, 28, 10),
        "after": (0, 2.5, 2.5),
    }


def test_errors_of_ops_by_hand(pair):
    found = compare(*pair)
    gemm = found.error("compute", "kind", "gemm")
    assert gemm is not None
    errors = [1 - 10 / 12, 1 - 10 / 13]
    assert (gemm.ops, gemm.median_error) == (1, pytest.approx(errors[0]))  # half are no larger
    assert gemm.p90_error == pytest.approx(errors[1])
    assert gemm.bias == pytest.approx(10 / 12.5 - 1)
    reduce = found.error("collective", "axis", "x")
    assert reduce is not None
    assert (reduce.predicted_seconds, reduce.measured_seconds) == pytest.approx((5e-9, 6e-9))
    assert (reduce.predicted_skew_seconds, reduce.measured_skew_seconds) == pytest.approx((0, 3.5e-9))
    assert found.error("collective", "all", "all") == replace(reduce, by="all", name="all")
    assert [w.op for w in found.worst[:2]] == ["micro0/fwd/qkv/gemm", "micro0/fwd/qkv/all_reduce_x"]


def test_ops_are_held_against_the_median_step_and_the_median_step_is_shown(tmp_path):
    predicted = write(tmp_path / "p", "predicted", table(by_hand_predicted()))
    steps = []
    for number, longer in enumerate((0, 50, 7)):
        ranks = by_hand_measured(later=1000 * number)
        ranks = {
            r: [replace(row, end=row.end + longer) if "norm" in row.op else row for row in rows]
            for r, rows in ranks.items()
        }
        steps.append(table(ranks, step=number + 4))
    measured = write(tmp_path / "m", "measured", *steps)
    found = compare(predicted, measured)
    assert (found.step, found.steps, found.measured_seconds) == (6, (4, 5, 6), pytest.approx(40e-9))
    norm = found.error("compute", "kind", "norm")
    assert norm is not None
    assert norm.measured_seconds == pytest.approx(9.5e-9)
    assert compare(predicted, measured, step=5).measured_seconds == pytest.approx(83e-9)
    # rank 0: from 133 to 1100 and from 1183 to 2100; rank 1: from 128 to 1105 and from 1178 to 2105
    assert found.between_steps_seconds == pytest.approx(np.median([967, 917, 977, 927]) * 1e-9)


def test_ops_of_one_trace_are_a_term_of_their_own(tmp_path):
    ranks = {
        r: [*rows, Row("micro0/fwd/norm2/normalize", "compute", 20, 27)] for r, rows in by_hand_predicted().items()
    }
    found = compare(
        write(tmp_path / "p", "predicted", table(ranks)), write(tmp_path / "m", "measured", table(by_hand_predicted()))
    )
    assert nanoseconds(found) == {
        "gemm": (10, 10, 0),
        "norm": (3, 3, 0),
        "transfer_x": (5, 5, 0),
        "alone": (7, 0, -7),
        "between": (2, 0, -2),
    }
    assert found.unpaired.predicted == ("micro0/fwd/norm2/normalize",)
    assert "1 op is in the first trace only: micro0/fwd/norm2/normalize" in found.warnings[0]


def test_a_queue_is_no_skew(tmp_path):
    """The second collective is ready at 2 but its communicator is busy until 10: nobody is late."""
    rank = [
        Row("micro0/fwd/qkv/gemm", "compute", 0, 1),
        *collective("micro0/fwd/a/all_gather_x", 1, 1, 10, (2, 10)),
        *collective("micro0/fwd/b/all_gather_x", 2, 10, 15, (10, 15)),
    ]
    run = table({0: rank, 1: rank})
    found = compare(write(tmp_path / "p", "predicted", run), write(tmp_path / "m", "measured", run))
    assert nanoseconds(found) == {"gemm": (1, 1, 0), "transfer_x": (13, 13, 0), "between": (1, 1, 0)}
    assert [g.measured_skew_seconds for g in found.errors if g.part == "collective"] == [0.0] * 6


def test_a_folded_trace_stands_for_all_ranks(tmp_path):
    """Classes 0 and 1 at two of eight ranks each would weigh the same; here three ranks are like rank 1."""
    grid = {"ranks": 4, "grid": {"data": 2, "x": 2}}
    rows = by_hand_measured()
    classes = pa.table({"rank": pa.array(range(4), pa.int32()), "class": pa.array([0, 1, 1, 1], pa.int32())})
    predicted = write(tmp_path / "p", "predicted", table(rows), classes=classes, job=grid)
    measured = write(tmp_path / "m", "measured", table(dict.fromkeys(range(4), by_hand_predicted()[0])), job=grid)
    found = compare(predicted, measured)
    assert (found.ranks, found.warnings) == (4, ())
    assert nanoseconds(found)["gemm"][:2] == pytest.approx(((12 + 3 * 13) / 4, 10))


LENGTHS = st.integers(0, 10**9)
PROGRAM = ["qkv/gemm", "!x/qkv/all_reduce_x", "norm1/normalize", "!z_gather/weights/all_gather_z", "attention", "gelu"]


@st.composite
def traces(draw) -> dict[int, list[Row]]:
    """Any valid timeline of the program on 2 × 2 ranks: gaps, late ranks, late ends, queues."""
    rows: dict[int, list[Row]] = {r: [] for r in range(4)}
    now = [draw(LENGTHS) for _ in range(4)]
    free: dict[tuple[str, int], int] = {}
    for op in [f"micro{m}/fwd/{op}" for m in range(2) for op in PROGRAM]:
        now = [t + draw(LENGTHS) for t in now]
        if "!" not in op:
            for r in range(4):
                begin, now[r] = now[r], now[r] + draw(LENGTHS)
                rows[r].append(Row(op, "compute", begin, now[r]))
            continue
        stream, name = op.split("!")[1].split("/", 1)
        axis, inner = ("x", 1) if stream == "x" else ("z", 2)
        arrival = list(now)
        for r in range(4):
            members = [m for m in range(4) if (m ^ r) in (0, inner)]
            start = max(*(arrival[m] for m in members), free.get((stream, r), 0))
            end = start + draw(LENGTHS)
            waits_from = arrival[r] + draw(LENGTHS)
            now[r] = max(waits_from, end) + draw(LENGTHS)
            rows[r] += collective(
                f"{op[:10]}/{name}", arrival[r], start, end, (waits_from, now[r]), axis=axis, stream=stream
            )
            free[stream, r] = end
    return rows


def accounts_of(ranks: dict[int, list[Row]]):
    steps = read_steps(table(ranks), "made")
    return account(steps, steps.times[0], lambda _: True, AXES)


def length_of(ranks: dict[int, list[Row]]) -> int:
    every = [row for rows in ranks.values() for row in rows]
    return max(r.end for r in every) - min(r.start if r.arrival is None else r.arrival for r in every)


@examples(0.4)
@given(traces(), traces(), st.data())
def test_any_two_steps_are_explained_exactly(first, second, data):
    """In whole nanoseconds, over any set of paired ops."""
    paired = data.draw(st.sets(st.sampled_from([row.op for row in first[0]])))
    for ranks in (first, second):
        steps = read_steps(table(ranks), "made")
        taken = account(steps, steps.times[0], lambda op: op.op in paired, AXES)
        assert sum(taken.terms.values()) == sum(taken.phases.values()) == 4 * length_of(ranks)
        assert min(taken.terms.values()) >= 0


@examples(0.08)
@given(first=traces(), second=traces())
def test_what_is_printed_sums_to_the_difference(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("any")
    job = {"ranks": 4, "grid": {"z": 2, "x": 2}}
    found = compare(
        write(folder / "p", "predicted", table(first), job=job),
        write(folder / "m", "measured", table(second, step=1), job=job),
    )
    predicted = max(row.end for rows in first.values() for row in rows)  # from zero on
    truth = (length_of(second) - predicted) / 1e9
    most = 1e-9 * max(found.predicted_seconds, found.measured_seconds)
    for terms in (found.terms, found.phases):
        assert sum(t.difference_seconds for t in terms) == pytest.approx(truth, abs=most)
        assert sum(t.predicted_seconds for t in terms) == pytest.approx(predicted / 1e9, rel=1e-9)
        assert sum(t.measured_seconds for t in terms) == pytest.approx(length_of(second) / 1e9, rel=1e-9)


@examples(0.3)
@given(traces(), st.sampled_from(["gemm", "norm", "attention", "elementwise"]), st.integers(1, 10**9))
def test_slower_ops_of_one_kind_move_that_term_and_no_other(ranks, kind, more):
    """All ranks lose the same time at the same ops, and everything behind is as much later."""
    word = {"gemm": "qkv/gemm", "norm": "norm1", "attention": "attention", "elementwise": "gelu"}[kind]
    ops = [op.op for op in ranks[0] if op.kind == "compute"]
    slower = {r: list(rows) for r, rows in ranks.items()}
    late = 0
    # ranks are put one behind the other, so that "behind" is the same for all
    for rows in slower.values():
        late = 0
        for i, row in enumerate(rows):
            stretched = word in row.op
            rows[i] = replace(
                row,
                start=row.start + late,
                end=row.end + late + more * stretched,
                arrival=None if row.arrival is None else row.arrival + late,
            )
            late += more * stretched
    before, after = accounts_of(ranks), accounts_of(slower)
    assert late == more * sum(word in op for op in ops)
    assert {name: after.terms[name] - before.terms[name] for name in terms_of(AXES)} == {
        name: 4 * late * (name == kind) for name in terms_of(AXES)
    }


@examples(0.2)
@given(traces())
def test_a_trace_against_itself_differs_in_nothing(ranks):
    assert accounts_of(ranks) == accounts_of(ranks)
