"""Traces that are damaged, foreign or do not fit: an error or a warning, never a wrong waterfall."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.compare.compare_traces import (
    Row,
    by_hand_measured,
    by_hand_predicted,
    changed,
    collective,
    exact,
    measured,
    refused,
    table,
    write,
)
from twin.compare.compare import compare


@pytest.fixture
def predicted(tmp_path) -> Path:
    return write(tmp_path / "p", "predicted", table(by_hand_predicted()))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"grid": {"y": 2}}, ["job.grid.x: is 2 in the first trace and 1 in the second", "job.grid.y"]),
        ({"precision": "bf16"}, ["job.precision: is 'fp32' in the first trace and 'bf16' in the second"]),
        ({"batch": {"sequences": 4, "micro_sequences": 1}}, ["job.batch.sequences: is 2 in the first trace and 4"]),
        ({"overlap": {"all_gather": False}}, ["job.overlap.all_gather: is True in the first trace and False"]),
        ({"recompute": False}, ["job.recompute"]),
    ],
)
def test_other_jobs_are_refused_with_what_differs(tmp_path, predicted, job, words):
    message = refused(predicted, measured(tmp_path, job=job))
    assert "different jobs" in message
    assert all(word in message for word in words)


def test_what_does_not_change_the_ops_may_differ(tmp_path, predicted):
    job = {"name": "other", "machine": "frontier", "seed": 5, "train": {"steps": 3}, "slowest_device": False}
    found = compare(predicted, measured(tmp_path, job=job))
    assert (found.machines, found.warnings) == (("laptop", "frontier"), ())


def test_the_order_matters_and_two_of_a_kind_are_said_to_be(tmp_path, predicted):
    run = measured(tmp_path)
    assert "swap them" in refused(run, predicted)
    assert "both traces are measured" in compare(run, run).warnings[0]
    assert compare(predicted, predicted).difference_seconds == 0


def test_missing_ranks_are_left_out_on_both_sides(tmp_path, predicted):
    found = exact(compare(predicted, measured(tmp_path, table({1: by_hand_measured()[1]}))))
    assert (found.ranks, found.ranks_of_job) == (1, 2)
    assert "1 of 2 ranks are not in the second trace" in found.warnings[0]
    assert "such as rank 0" in found.warnings[0]
    assert found.measured_seconds == pytest.approx(23e-9)  # of rank 1 alone: 105 to 128


def test_traces_without_a_common_rank_are_refused(tmp_path):
    ours = write(tmp_path / "p", "predicted", table({0: by_hand_predicted()[0]}))
    assert "no rank in common" in refused(ours, measured(tmp_path, table({1: by_hand_measured()[1]})))


def test_ranks_and_classes_that_the_job_does_not_have_are_refused(tmp_path, predicted):
    more = by_hand_measured() | {7: by_hand_measured()[0]}
    message = refused(predicted, measured(tmp_path, table(more)))
    assert "= 7: has events of a rank that a job of 2 ranks does not have" in message
    classes = pa.table({"rank": pa.array([0], pa.int32()), "class": pa.array([0], pa.int32())})
    folded = write(tmp_path / "f", "predicted", table({0: by_hand_predicted()[0]}), classes=classes)
    assert "each of the 2 ranks a class" in refused(folded, measured(tmp_path / "again"))


def test_names_of_ops_hold_their_step(tmp_path, predicted):
    good = table(by_hand_measured())
    place = good.column_names.index("step")
    wrong = good.set_column(place, good.schema.field("step"), pa.array(np.full(len(good), 4, dtype=np.int32)))
    assert "8 events have the op of another step" in refused(predicted, measured(tmp_path, wrong))
    place = good.column_names.index("op")
    foreign = good.set_column(place, good.schema.field("op"), pa.array([f"kernel{i}" for i in range(len(good))]))
    assert "not named like step0/" in refused(predicted, write(tmp_path / "f", "measured", foreign))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "guessed"}, "neither predicted nor measured"),
        ({"clock": None}, "how clocks were aligned"),
        ({"clock": {"method": "", "uncertainty_ns": -1}}, "uncertainty_ns"),
        ({"clock": {"method": "", "uncertainty_ns": 1.5}}, "uncertainty_ns"),
        ({"job": None}, "job: is missing"),
        ({"job": {"ranks": "many"}}, "job.ranks"),
        ({"job": {"colour": "red"}}, "job.colour"),
    ],
)
def test_manifests_that_make_no_sense_are_refused(tmp_path, predicted, changes, words):
    run = measured(tmp_path)
    path = run / "manifest.json"
    before = json.loads(path.read_text())
    path.write_text(
        json.dumps(before | changes | ({"job": before["job"] | changes["job"]} if changes.get("job") else {}))
    )
    assert words in refused(predicted, run)


def test_what_the_manifest_says_of_the_run_is_passed_on(tmp_path, predicted):
    moved = {"ends_moved": 3, "largest_ns": 70, "put_in_a_row": 0, "largest_overlap_ns": 0}
    run = measured(
        tmp_path, table(changed(by_hand_measured(), "normalize", bytes=9e9)), corrections=moved, code_version="0"
    )
    said = "\n".join(compare(predicted, run).warnings)
    assert "3 collectives ended before their last member came" in said
    assert "written by version '0'" in said
    assert "1 paired ops have other bytes or flops in the second trace, such as micro0/fwd/norm1/normalize" in said
    longer = write(tmp_path / "l", "predicted", table(by_hand_predicted()), figures={"step_seconds": 1e-6})
    assert "its manifest says 1e-06 s a step, its events 1.8e-08 s" in compare(longer, run).warnings[0]


def test_tables_of_another_run_are_seen(tmp_path, predicted):
    run = measured(tmp_path)
    shutil.copy(predicted / "events.parquet", run / "events.parquet")
    assert "is damaged, or of another run" in refused(predicted, run)


def test_steps_that_are_not_there_are_named(tmp_path, predicted):
    assert "--step = 9: choose from 0" in refused(predicted, measured(tmp_path), step=9)


def test_links_are_followed_and_pipes_are_not(tmp_path, predicted):
    run = measured(tmp_path)
    shutil.move(run / "events.parquet", tmp_path / "elsewhere")
    (run / "events.parquet").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(run)
    assert compare(predicted, tmp_path / "link").difference_seconds == pytest.approx(15e-9)
    (run / "events.parquet").unlink()
    os.mkfifo(run / "events.parquet")
    assert "is not a regular file" in refused(predicted, run)


def test_a_rank_that_begins_with_a_collective_begins_there(tmp_path):
    """Prefetch comes before any compute: the step begins with it."""
    rank = [
        *collective("micro0/fwd/weights/all_gather_x", 10, 10, 40, (20, 40)),
        Row("micro0/fwd/qkv/gemm", "compute", 50, 60),
    ]
    run = table({0: rank, 1: rank})
    found = compare(write(tmp_path / "p", "predicted", run), write(tmp_path / "m", "measured", run))
    assert found.measured_seconds == pytest.approx(50e-9)
    assert {t.name: round(t.measured_seconds * 1e9) for t in found.terms} == {
        "gemm": 10,
        "transfer_x": 20,
        "before": 10,
        "between": 10,
    }
