"""Pipelines: stage by stage, against traces whose bubbles are known, and simulations whose slow stage is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.compare_traces import Row, changed, refused, table
from tests.compare.pipeline_traces import by_hand, gemm, length_of, message, played, written
from tests.profiles import examples
from tests.tiers import full
from twin.api import simulate
from twin.cli import main
from twin.compare.account import account
from twin.compare.bubbles import is_bubble
from twin.compare.compare import Comparison, compare
from twin.compare.page import page
from twin.compare.pipeline import ComparedStage
from twin.compare.stages import read_stages
from twin.description.problems import DescriptionError
from twin.schedule.communicator import Role

AXES = ("pipeline", "data", "context", "tensor")
ROLES = tuple(Role(f"stage{rank}", np.array([rank])) for rank in range(2))


def nanoseconds(stage: ComparedStage) -> dict[str, tuple[int, int]]:
    """(predicted, measured) of each term."""
    return {t.name: (round(t.predicted_seconds * 1e9), round(t.measured_seconds * 1e9)) for t in stage.terms}


def exact(found: Comparison) -> Comparison:
    """Of every stage the terms and the phases are both steps, and sum to their difference."""
    assert found.pipeline is not None
    for stage in found.pipeline.stages:
        for terms in (stage.terms, stage.phases):
            for side in ("predicted", "measured", "difference"):
                total = sum(getattr(term, f"{side}_seconds") for term in terms)
                assert total == pytest.approx(getattr(found, f"{side}_seconds"), rel=1e-9, abs=1e-15)
    decides = found.pipeline.stage(found.pipeline.critical)
    assert (found.terms, found.phases) == (decides.terms, decides.phases)
    return found


@pytest.fixture
def predicted(tmp_path: Path) -> Path:
    return written(tmp_path / "p", "predicted", by_hand())


def test_bubbles_by_hand(tmp_path: Path, predicted: Path) -> None:
    found = exact(compare(predicted, written(tmp_path / "m", "measured", by_hand(work=30))))
    assert (found.predicted_seconds, found.measured_seconds) == pytest.approx((59e-9, 99e-9))
    assert found.pipeline is not None
    first, second = found.pipeline.stages
    assert nanoseconds(first) == {
        "gemm": (30, 30),
        "optimizer": (4, 4),
        "warmup_pipeline": (20, 60),  # from 12, until stage 1 sends at 12 + 2 · work
        "message_pipeline": (4, 4),
        "transfer_pipeline": (1, 1),
    }
    assert nanoseconds(second) == {
        "gemm": (20, 60),
        "optimizer": (4, 4),
        "warmup_pipeline": (10, 10),  # stage 0's first pass
        "drain_pipeline": (20, 20),  # its last one
        "message_pipeline": (4, 4),
        "transfer_pipeline": (1, 1),
    }
    assert found.warnings == ()


def test_the_stage_that_was_slowed_is_named(tmp_path: Path, predicted: Path) -> None:
    """By hand: stage 0 decides while stage 1's passes take 10 ns, stage 1 when they take 30."""
    found = compare(predicted, written(tmp_path / "m", "measured", by_hand(work=30)))
    assert found.pipeline is not None
    assert (found.pipeline.predicted_critical, found.pipeline.critical) == ("stage 0", "stage 1")
    assert {t.name: round(t.difference_seconds * 1e9) for t in found.terms if t.difference_seconds} == {"gemm": 40}
    bias = [found.error("compute", "stage", f"stage {number}") for number in (0, 1)]
    assert [group.bias for group in bias if group] == pytest.approx([0, 24 / 64 - 1])


def test_ops_of_one_name_on_two_stages_are_two_ops(tmp_path: Path, predicted: Path) -> None:
    found = compare(predicted, written(tmp_path / "m", "measured", by_hand(work=30)))
    assert {(w.op, w.stage) for w in found.worst[:2]} == {
        ("micro0/F/qkv/gemm", "stage 1"),
        ("micro0/B/qkv/gemm", "stage 1"),
    }
    products = found.error("compute", "kind", "gemm")
    assert products is not None
    assert products.ops == 4  # one rank of each stage
    assert (products.predicted_seconds, products.measured_seconds) == pytest.approx((50e-9, 90e-9))
    messages = found.error("collective", "kind", "message")
    assert messages is not None
    assert (messages.ops, messages.measured_seconds) == (4, pytest.approx(8e-9))
    assert found.error("collective", "name", "F/send") is not None


def test_a_wait_between_backward_and_forward_is_imbalance(tmp_path: Path) -> None:
    ranks = {
        0: [gemm("0F", 0, 10), gemm("0B", 10, 20), *message("1F", "receive", 20, 25, 27, (20, 27)), gemm("1F", 27, 30)],
        1: [gemm("0F", 0, 25), *message("1F", "send", 25, 25, 27, (25, 27)), gemm("1F", 27, 30)],
    }
    run = written(tmp_path / "p", "predicted", ranks)
    found = exact(compare(run, run))
    assert found.pipeline is not None
    assert nanoseconds(found.pipeline.stages[0])["imbalance_pipeline"] == (5, 5)
    assert found.pipeline.critical == "stage 1"


@examples(0.4)
@given(st.data())
def test_any_step_of_a_pipeline_is_explained_exactly(data: st.DataObject) -> None:
    """In whole nanoseconds, of each stage, over any set of paired ops."""
    ranks = played(lambda: data.draw(st.integers(0, 10**9)))
    paired = data.draw(st.sets(st.sampled_from([row.op for rows in ranks.values() for row in rows])))
    for stage in read_stages(table(ranks), ROLES, "made"):
        taken = account(stage.steps, stage.steps.times[0], lambda op: op.op in paired, AXES, depth=("pipeline",))
        assert sum(taken.terms.values()) == sum(taken.phases.values()) == length_of(ranks)
        assert min(taken.terms.values()) >= 0


@examples(0.1)
@given(st.data())
def test_any_two_runs_of_a_pipeline_sum_to_the_difference(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("any")
    runs = [played(lambda: data.draw(st.integers(0, 10**6))) for _ in range(2)]
    found = exact(compare(written(folder / "p", "predicted", runs[0]), written(folder / "m", "measured", runs[1])))
    predicted = max(row.end for rows in runs[0].values() for row in rows)  # from zero on
    assert found.difference_seconds == pytest.approx((length_of(runs[1]) - predicted) / 1e9, abs=1e-15)


SIMULATED: dict[str, Any] = {
    "strategy": "megatron",
    "flavour": "torch",
    "model": {"layers": 8, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 1024},
    "machine": "dgx-h100",
    "ranks": 8,
    "grid": {"pipeline": 4, "tensor": 2},
    "batch": {"sequences": 16, "micro_sequences": 1},
}


SCHEDULES: list[dict[str, Any]] = [{"schedule": "1f1b"}, {"schedule": "interleaved", "chunks": 2}]


@pytest.mark.parametrize("schedule", full(SCHEDULES, SCHEDULES[0]), ids=str)
def test_a_simulated_straggler_is_the_critical_stage(tmp_path: Path, schedule: dict[str, Any]) -> None:
    """Both ranks of stage 2 compute at half the speed: what they compute is as much longer, and they decide."""
    slow = [{"rank": rank, "slowdown": 2.0} for rank in (4, 5)]
    for name, stragglers in (("healthy", []), ("slow", slow)):
        simulate({**SIMULATED, **schedule, "stragglers": stragglers}).write(tmp_path / name)
    found = exact(compare(tmp_path / "healthy", tmp_path / "slow"))
    assert found.pipeline is not None
    assert (found.pipeline.critical, found.ranks) == ("stage 2", 8)
    gemm_term = next(term for term in found.terms if term.name == "gemm")
    assert gemm_term.measured_seconds == pytest.approx(2 * gemm_term.predicted_seconds, rel=0.2)
    others = [stage for stage in found.pipeline.stages if stage.name != "stage 2"]
    assert all(stage.measured_bubble_seconds > stage.predicted_bubble_seconds for stage in others)
    assert found.unpaired.predicted == found.unpaired.measured == ()


def test_a_trace_against_itself_differs_in_nothing(predicted: Path) -> None:
    found = exact(compare(predicted, predicted))
    assert found.pipeline is not None
    assert not any(t.difference_seconds for stage in found.pipeline.stages for t in stage.terms)
    assert found.pipeline.critical == found.pipeline.predicted_critical == "stage 0"


def test_a_stage_that_is_not_traced_is_left_out(tmp_path: Path, predicted: Path) -> None:
    found = exact(compare(predicted, written(tmp_path / "m", "measured", {1: by_hand()[1]})))
    assert found.pipeline is not None
    assert [stage.name for stage in found.pipeline.stages] == ["stage 1"]
    assert "1 of 2 ranks are not in the second trace" in found.warnings[0]
    assert found.pipeline.critical == "stage 1"


def test_steps_that_one_stage_lacks_are_dropped(tmp_path: Path, predicted: Path) -> None:
    later = {r: [_later(row, 1000) for row in rows] for r, rows in by_hand().items()}
    found = exact(compare(predicted, written(tmp_path / "m", "measured", by_hand(), {0: later[0]})))
    assert found.steps == (0,)
    assert "step 1 of the second trace" in found.warnings[0]
    assert "not whole in all stages" in found.warnings[0]
    alone = written(tmp_path / "n", "measured", {0: by_hand()[0]}, {1: later[1]})
    assert "no step that is whole in all stages" in refused(predicted, alone)


def _later(row: Row, by: int) -> Row:
    arrival = None if row.arrival is None else row.arrival + by
    return replace(row, start=row.start + by, end=row.end + by, arrival=arrival)


def test_clocks_of_stages_that_contradict_each_other_are_seen(tmp_path: Path, predicted: Path) -> None:
    """Stage 1 has a message 50 ns before stage 0 sends it; names at both ends differ, and chunks may."""
    early = by_hand()
    early[1] = [_later(row, 100) for row in early[1]]
    early[0] = [_later(row, 150) for row in early[0]]
    message = refused(predicted, written(tmp_path / "m", "measured", early))
    assert "clocks jumped" in message
    assert "disagree by 5e-08 s" in message


def test_other_programs_are_refused_with_their_stage(tmp_path: Path, predicted: Path) -> None:
    other = by_hand()
    other[1] = [Row(f"micro0/F/odd{n}", "compute", n, n + 1) for n in range(9)]
    assert "of stage 1 have the same names" in refused(predicted, written(tmp_path / "m", "measured", other))
    other = changed(by_hand(), "0/B/qkv/gemm", only=1, phase="fwd")
    found = refused(predicted, written(tmp_path / "n", "measured", other))
    assert "micro0/B/qkv/gemm of stage 1: is a compute on compute in phase bwd in the first" in found
    seven = {**by_hand(), 7: by_hand()[0]}
    assert "a rank that a job of 2 ranks does not have" in refused(
        predicted, written(tmp_path / "s", "measured", seven)
    )


def test_other_grids_are_refused(tmp_path: Path, predicted: Path) -> None:
    other = written(tmp_path / "m", "measured", dict.fromkeys((0, 1), by_hand()[0]), job={"grid": {"data": 2}})
    with pytest.raises(DescriptionError, match=r"job\.grid\.pipeline: is 2 in the first trace and 1 in the second"):
        compare(predicted, other)


def test_terminal_page_and_json_say_the_same(tmp_path: Path, predicted: Path, capsys: Any) -> None:
    measured = written(tmp_path / "m", "measured", by_hand(work=30))
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(predicted), str(measured)])
    assert not ended.value.code
    shown, text = capsys.readouterr().out, page(compare(predicted, measured))
    for words in ("bubble: warm-up", "stage 1, critical", "stage 1: 69.7 % its own time, 30.3 % bubble", "Stage 0"):
        assert words.lower() in shown.lower()
        assert words.lower() in text.lower()
    assert "mean over ranks of stage 1" in shown
    with pytest.raises(SystemExit):
        main(["compare", str(predicted), str(measured), "--json"])
    said = json.loads(capsys.readouterr().out)["pipeline"]
    assert (said["critical"], said["predicted_critical"]) == ("stage 1", "stage 0")
    bubbles = [[t["measured_seconds"] for t in s["terms"] if is_bubble(t["name"])] for s in said["stages"]]
    assert [sum(each) for each in bubbles] == pytest.approx([60e-9, 30e-9])
    assert [s["measured_bubble_seconds"] for s in said["stages"]] == pytest.approx([60e-9, 30e-9])
