"""Figures of a run in closed form: learning rate, speed, and the file of metrics."""

from __future__ import annotations

import errno
import json
from itertools import pairwise
from math import cos, pi
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.plan.optimizer_settings import Schedule
from runtime.records.metrics import speed
from runtime.records.metrics_file import MetricsFile
from twin.description.train import Shape, Train
from twin.trace.metrics import job_peak_flops_per_second

SHAPES = st.sampled_from(get_args(Shape))


def test_the_learning_rate_at_the_points_that_matter():
    schedule = Schedule(peak=1e-3, least=1e-4, warmup_steps=10, steps=110)
    # the first step already learns, the last one of the warm-up is at the peak
    assert [schedule.at(step) for step in (0, 4, 9)] == pytest.approx([1e-4, 5e-4, 1e-3])
    assert schedule.at(10) == pytest.approx(1e-3)
    # half way down half the height is left; a third of the way, where the cosine is ½, ¾ of it
    assert schedule.at(60) == pytest.approx((1e-3 + 1e-4) / 2)
    third = Schedule(peak=1.0, least=0.0, warmup_steps=0, steps=300)
    assert [third.at(100), third.at(200)] == pytest.approx([0.75, 0.25])
    # the last step is one before the end, where `least` is reached; beyond, it stays
    assert schedule.at(109) == pytest.approx(1e-4 + 9e-4 * (1 + cos(0.99 * pi)) / 2)
    assert schedule.at(109) > 1e-4
    assert [schedule.at(step) for step in (110, 111, 10**9)] == pytest.approx([1e-4] * 3)


def test_no_warmup_starts_at_the_peak():
    schedule = Schedule(peak=2.0, least=1.0, warmup_steps=0, steps=4)
    root = 2**-0.5  # cosine of 45°
    expected = [2.0, 1.5 + root / 2, 1.5, 1.5 - root / 2, 1.0]
    assert [schedule.at(step) for step in range(5)] == pytest.approx(expected)


def test_a_warmup_longer_than_the_run_only_rises():
    schedule = Schedule(peak=1.0, least=0.1, warmup_steps=20, steps=5)
    assert [schedule.at(step) for step in range(5)] == pytest.approx([0.05, 0.10, 0.15, 0.20, 0.25])


def test_a_flat_schedule_stays():
    schedule = Schedule(peak=0.5, least=0.5, warmup_steps=2, steps=9)
    assert [schedule.at(step) for step in range(12)] == pytest.approx([0.25] + [0.5] * 11)


def test_the_other_shapes_at_the_points_that_matter():
    linear = Schedule(1.0, 0.2, 10, 110, "linear")
    assert [linear.at(step) for step in (9, 10, 35, 60, 110, 200)] == pytest.approx([1, 1, 0.8, 0.6, 0.2, 0.2])
    constant = Schedule(1.0, 1.0, 10, 110, "constant")
    assert {constant.at(step) for step in (9, 10, 60, 109, 500)} == {1.0}
    stable = Schedule(1.0, 0.0, 10, 110, "wsd", 20)
    assert [stable.at(step) for step in (4, 10, 89, 90, 95, 100, 110)] == pytest.approx([0.5, 1, 1, 1, 0.75, 0.5, 0])


def test_what_a_job_leaves_open_of_a_shape():
    def schedule(**keys):
        return Schedule.of(Train.model_validate({"steps": 200, "learning_rate": {"peak": 1.0, **keys}}))

    assert schedule(schedule="wsd") == Schedule(1.0, 0.1, 20, 200, "wsd", 20)
    assert schedule(schedule="wsd", decay_steps=50, least=0).at(175) == pytest.approx(0.5)
    assert schedule(schedule="constant").least == 1.0


@given(st.floats(1e-9, 10), st.floats(0, 1), st.integers(0, 300), st.integers(1, 300), st.integers(0, 700), SHAPES)
def test_the_learning_rate_rises_to_the_peak_then_falls_to_the_least(peak, share, warmup, steps, step, shape):
    schedule = Schedule(peak, share * peak, warmup, steps, shape, steps // 3)
    slack = 1e-12 * peak
    here, after = schedule.at(step), schedule.at(step + 1)
    assert here + slack > 0
    assert here <= peak + slack
    if step + 1 < warmup:
        assert here < after
    if step >= warmup:
        assert here >= share * peak - slack
        assert after <= here + slack


@given(st.integers(0, 50), st.integers(1, 100))
def test_the_learning_rate_has_no_jumps(warmup, falling):
    schedule = Schedule(1.0, 0.0, warmup, warmup + falling)
    assume(falling > 1)
    rates = [schedule.at(step) for step in range(warmup + falling + 3)]
    steepest = max(1 / max(warmup, 1), pi / 2 / falling)
    assert max(abs(b - a) for a, b in pairwise(rates)) <= steepest + 1e-12
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)


def test_speed_is_that_of_the_published_formula(make_job):
    model = {"layers": 24, "hidden": 2048, "heads": 16, "sequence": 1024, "vocabulary": 51200}
    job = make_job({"data": 2, "x": 2}, "perlmutter", model=model, per_rank=8)
    batch, s, layers, h, v = 16, 1024, 24, 2048, 51200
    # section 8 of the algorithm without recomputation: what the devices must do at least
    flops = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    found = speed(job, 2.5, peak_known=True)
    assert found.tokens_per_second == pytest.approx(batch * s / 2.5)
    assert found.model_flops_per_second == pytest.approx(flops / 2.5)
    assert found.utilisation == pytest.approx(flops / 2.5 / (4 * 312e12))  # an A100 in bf16
    assert speed(job, 2.5, peak_known=False).utilisation is None
    for recompute in (False, True):  # work done twice is no progress
        other = job.model_copy(update={"recompute": recompute})
        assert speed(other, 2.5, peak_known=True) == found


@pytest.mark.parametrize(("precision", "peak"), [("bf16", 312e12), ("fp32", 19.5e12)])
def test_the_peak_is_that_of_the_precision(make_job, precision, peak):
    """NVIDIA's data sheet of the A100: 312 TFLOP/s in bf16, 19.5 in fp32."""
    job = make_job({"x": 2}, "perlmutter", precision=precision)
    assert job_peak_flops_per_second(job) == pytest.approx(2 * peak)  # two ranks


def test_a_resumed_run_keeps_whole_lines_of_steps_it_does_not_repeat(tmp_path):
    before = [json.dumps({"step": step, "loss": 5.0 - step}) + "\n" for step in range(6)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(before) + '{"step": 2, "los', encoding="utf-8")
    file = MetricsFile(tmp_path, 4, 10)
    assert path.read_text(encoding="utf-8") == "".join(before[:4])
    file.write({"step": 4, "loss": 0.5})
    file.close()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["loss"] for line in lines] == [5.0, 4.0, 3.0, 2.0, 0.5]


@pytest.mark.parametrize("on_disk", [0, 3, 30, 1000])
def test_going_back_takes_no_space_but_its_own_line(tmp_path, on_disk):
    """On a disk that is full after so many bytes, and has room later, the file is what it is on one with room."""
    path, entry = tmp_path / "metrics.jsonl", {"from_step": 5, "to_step": 3, "left_out": [4, 5]}
    file = MetricsFile(tmp_path, 0, 10)
    room = on_disk

    class Small:
        def write(self, data):
            nonlocal room
            if not room:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(room, len(data))
            room -= taken
            return real.write(data[:taken])

        def __getattr__(self, name):
            return getattr(real, name)

    real, file._file = file._file, Small()
    for step in range(6):
        file.write({"step": step, "loss": 1.0 + step})
    inode = path.stat().st_ino
    file.go_back(3, entry)
    assert path.stat().st_ino == inode
    room = 10_000
    file.write({"step": 3, "loss": 9.0})
    file.close()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [*({"step": s, "loss": 1.0 + s} for s in range(3)), entry, {"step": 3, "loss": 9.0}]


def test_going_back_drops_lines_of_others(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(tmp_path, 0, 10)
    file.write({"step": 0, "loss": 1.0})
    with path.open("a", encoding="utf-8") as beside:
        beside.write("a note\n")
    for step in (1, 2):
        file.write({"step": step, "loss": 1.0})
    file.go_back(2, {"from_step": 2, "to_step": 2})
    file.close()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line.get("step") for line in lines] == [0, 1, None]


def test_a_line_cut_off_by_a_kill_is_dropped_whatever_its_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = '{"step": 0, "loss": 3.0}\n'
    for torn in ('{"step": 1, "loss": 2.5}', '{"step": 1,', "{"):
        path.write_text(whole + torn, encoding="utf-8")
        MetricsFile(tmp_path, 2, 10).close()
        assert path.read_text(encoding="utf-8") == whole


@pytest.mark.parametrize(("steps", "kept"), [(8, 2), (6, 1), (4, 1)])
def test_the_evaluation_at_the_end_is_written_once(tmp_path, steps, kept):
    """A run that is over after six steps is evaluated there again; also one that is asked for fewer by now."""
    lines = [json.dumps({"after_steps": step, "validation_loss": 2.0}) + "\n" for step in (3, 6)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    MetricsFile(tmp_path, 6, steps).close()
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == "".join(lines[:kept])


def test_lines_that_are_not_of_a_run_are_dropped(tmp_path):
    """What somebody wrote into the file; losses are looked back at."""
    whole = '{"step": 0, "loss": 3.0}\n'
    strange = [
        '{"step": 1}',
        '{"step": 1, "loss": null}',
        '{"step": 1, "loss": NaN}',
        '{"step": [], "loss": 1.0}',
        "[1]",
        "5",
    ]
    (tmp_path / "metrics.jsonl").write_text(whole + "".join(f"{line}\n" for line in strange), encoding="utf-8")
    file = MetricsFile(tmp_path, 2, 10)
    assert file.losses(9) == [(0, 3.0)]
    file.close()


def test_the_first_run_starts_an_empty_file(tmp_path):
    MetricsFile(tmp_path, 0, 10).close()
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == ""
