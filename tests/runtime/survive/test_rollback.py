"""Going back: when, to where, and without which batches; held against runs that never had them."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.launch.board import Board
from runtime.launch.environment import Process
from runtime.survive.history import History, WentBack, longer
from runtime.survive.rollback import Culprit, Guard, go_back
from runtime.survive.spikes import FLOOR, Spikes
from tests.runtime import runs
from twin.description.problems import DescriptionError


def entry(*left_out: int, to_step: int = 0) -> WentBack:
    return WentBack(from_step=to_step + 1, to_step=to_step, left_out=left_out, why="a test")


@given(st.lists(st.sets(st.integers(0, 30), max_size=5), max_size=4), st.integers(0, 40))
def test_steps_train_on_all_batches_but_those_left_out(left_out, step):
    history = History([entry(*sorted(batches)) for batches in left_out])
    kept = [batch for batch in range(100) if batch not in set().union(*left_out)]
    assert history.batch(step) == kept[step]
    assert History.read(json.loads(json.dumps(history.as_json())), "x").batch(step) == kept[step]


def test_of_two_histories_the_one_that_knows_more():
    one, two = History([entry(1)]), History([entry(1), entry(4, to_step=2)])
    assert longer(one, two) is longer(two, one) is two
    # back from steps 1 and 3: a checkpoint after two steps is past the first, one after four past both
    assert [two.times(newest) for newest in (0, 1, 2, 3, 4)] == [2, 2, 1, 1, 0]


@pytest.mark.parametrize("damaged", [[1], {"a": 1}, [{"from_step": 1}], [{**entry(1).model_dump(), "to_step": -1}]])
def test_a_damaged_history_is_named(damaged):
    with pytest.raises(DescriptionError, match=r"run\.json: rollbacks"):
        History.read(damaged, "run.json")


@given(st.lists(st.floats(0.1, 20), min_size=4, max_size=12), st.floats(0.5, 10))
def test_the_limit_is_the_median_and_so_many_deviations(losses, factor):
    spikes = Spikes(factor, len(losses), enumerate(losses))
    middle = statistics.median(losses)
    deviation = 1.4826 * statistics.median([abs(loss - middle) for loss in losses])
    limit = middle + factor * max(deviation, FLOOR * middle)
    assert spikes.limit() == pytest.approx(limit)
    assert spikes.leaps(99, math.nextafter(spikes.limit(), math.inf))
    assert not spikes.leaps(99, losses[0] * 0)


def test_nothing_leaps_before_the_window_is_full():
    spikes = Spikes(3.0, 4)
    assert [spikes.leaps(step, loss) for step, loss in enumerate([1.0, 50.0, 1.0, 1.0])] == [False] * 4
    assert spikes.leaps(4, 60.0)
    assert not spikes.leaps(5, 1.0)
    spikes.forget(2)
    assert spikes.limit() is None


def test_all_look_at_the_same_step_and_earlier_notices_do_not_count():
    """One process: what rank 0 puts up after step 4 it acts upon after step 5, as all others do."""
    guard = Guard(Board(None, Process()), Spikes(3.0, 4))
    for step in range(4):
        assert guard.culprit(step + 1, stopped=False) is None
        guard.see(step, 1.0, step + 2)
    assert guard.culprit(5, stopped=False) is None
    guard.see(4, 9.0, 6)
    found = guard.culprit(6, stopped=False)
    assert found is not None
    assert (found.step, found.first, found.finite) == (4, 3, True)
    assert "loss 9.0000 is above 1.1500" in found.why
    guard.went_back(2)
    assert guard.culprit(3, stopped=False) is None
    found = guard.culprit(4, stopped=True)
    assert found is not None
    assert (found.step, found.first, found.finite) == (3, 2, False)


POISON = """
import sys
import numpy as np
import torch
from runtime.step import feed
from twin.cli import main

kind, batches = sys.argv[1], set(map(int, sys.argv[2].split(",")))
given = feed.Feed.step

def step(self, number):
    made = given(self, number)
    if number in batches:
        for micro in made:
            if kind.startswith("nan"):
                micro.weights.mul_(float("nan"))
            else:  # what no text looks like
                noise = np.random.default_rng(number).integers(0, 256, tuple(micro.targets.shape))
                micro.targets.copy_(torch.from_numpy(noise))
    return made

feed.Feed.step = step
if kind == "nan, seen late":  # hosts of GPUs look where something is written or kept
    from runtime.train.run import Run

    Run._next_look = lambda self, done: min(self.plan.options.steps, done - done % 4 + 4)
main(sys.argv[3:])
"""


def poisoned(folder: Path, kind: str, batches: str, job: Path, *arguments: str, ranks: int = 2):
    """Train with some batches spoilt, whenever they are used; exit code, what was shown, errors."""
    (folder / "poison.py").write_text(POISON)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, str(folder / "poison.py"), kind, batches, "train", str(job), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=runs.environment(
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                PYTHONPATH=str(Path(__file__).parents[3]),
            ),
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=110) for process in started]
    codes = {process.returncode for process in started}
    assert len(codes) == 1, said
    return codes.pop(), said[0][0], "".join(errors for _, errors in said)


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def write_job(folder: Path, **rollback) -> Path:
    wanted = {"window": 8, **rollback}
    train = {
        "steps": 30,
        "threads": 1,
        "rollback": wanted,
        "checkpoints": {"every": 4},
        "learning_rate": {"peak": 1.0e-2, "warmup_steps": 3},
    }
    return runs.write_job(folder, train=train)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nan", "nan, seen late", "noise"])
def test_the_run_is_the_one_that_never_had_those_batches(tmp_path, kind):
    """Spoilt at batch 21: the run goes on as one that from the start leaves out 20 and 21, bit for bit."""
    job, late = write_job(tmp_path), ["--set", "train.log_every=4"] if "late" in kind else []
    code, _, errors = poisoned(tmp_path, kind, "21", job, "--out", str(tmp_path / "run"), *late)
    assert code == 0, errors
    why = r"loss" if kind == "noise" else "loss or gradient is not finite"
    assert f"fourfold: step 21: {why}" in errors
    assert "going back to step 20 and on without batches 20, 21" in errors
    went = [line for line in lines(tmp_path / "run") if "to_step" in line]
    assert [(line["from_step"], line["to_step"], line["left_out"]) for line in went] == [(21, 20, [20, 21])]
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert described["rollbacks"] == went
    # a run of its own that knows from the start
    other = tmp_path / "other"
    first = runs.train(job, "--ranks", "2", "--out", str(other), "--set", "train.steps=1", *late)
    assert first.returncode == 0, first.stderr
    (other / "run.json").write_text(json.dumps({**json.loads((other / "run.json").read_text()), "rollbacks": went}))
    done = runs.train(job, "--ranks", "2", "--out", str(other), *late)
    assert done.returncode == 0, done.stderr
    found, expected = runs.losses(tmp_path / "run"), runs.losses(other)
    assert list(found) == ([*list(range(3, 30, 4)), 29] if late else list(range(30)))
    assert found == {step: expected[step] for step in found}


def test_later_checkpoints_are_deleted_once_the_one_to_go_back_to_is_read(tmp_path):
    """A stand-in for three checkpoints, of which the wanted one is damaged, or all."""
    (tmp_path / "run.json").write_text("{}")
    readable, deleted = [4], []

    class Three:
        def steps(self):
            return [12, 8, 4]

        def load_latest(self, _context, _optimizer, *, most):
            found = [step for step in self.steps() if step <= most and step in readable]
            if not found:
                raise DescriptionError([], "no checkpoint is usable")
            assert deleted == []
            return SimpleNamespace(step=found[0])

        def discard_after(self, step):
            deleted.append(step)

        def from_first(self, make):
            return make()

    told: list[str] = []
    arguments = History(), Three(), None, None, tmp_path, 3, told.append
    gone = go_back(Culprit(9, 8, "a test"), *arguments)
    assert gone is not None
    assert (gone[1].to_step, gone[1].left_out, deleted) == (4, (8, 9), [8])
    assert told == []
    assert json.loads((tmp_path / "run.json").read_text())["rollbacks"] == gone[0].as_json()
    deleted.clear()
    readable.clear()
    with pytest.raises(DescriptionError, match="no checkpoint is usable"):
        go_back(Culprit(9, 8, "a test"), *arguments)
    assert deleted == []


def test_a_full_disk_is_told_and_the_run_goes_on(tmp_path, monkeypatch):
    """It ended there, with the later checkpoints deleted; what was written down before stays as it was."""
    (tmp_path / "run.json").write_text('{"known": 1}')

    class One:
        def steps(self):
            return [4]

        def load_latest(self, _context, _optimizer, *, most):
            assert most == 4
            return SimpleNamespace(step=4)

        def discard_after(self, _step):
            pass

        def from_first(self, make):
            return make()

    def full(_path, *_given, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told: list[str] = []
    monkeypatch.setattr(Path, "write_text", full)
    gone = go_back(Culprit(6, 5, "a test"), History(), One(), None, None, tmp_path, 3, told.append)
    assert gone is not None
    assert gone[1].left_out == (5, 6)
    assert gone[0].batch(5) == 7
    (line,) = told
    assert "run.json: no space left" in line
    assert json.loads((tmp_path / "run.json").read_text()) == {"known": 1}


@pytest.mark.process
@pytest.mark.slow
def test_a_resumed_run_leaves_out_the_same(tmp_path):
    job = write_job(tmp_path)
    code, _, errors = poisoned(tmp_path, "nan", "9", job, "--out", str(tmp_path / "run"))
    assert code == 0, errors
    code, _, errors = poisoned(tmp_path, "nan", "9", job, "--out", str(tmp_path / "again"), "--set", "train.steps=11")
    assert code == 0, errors
    assert [line["to_step"] for line in lines(tmp_path / "again") if "to_step" in line] == [8]
    code, shown, errors = poisoned(tmp_path, "nan", "9", job, "--out", str(tmp_path / "again"), "--accept-changes")
    assert code == 0, errors
    assert "continuing small after step 11" in shown
    assert "going back" not in errors
    assert list(runs.losses(tmp_path / "again")) == list(range(30))


@pytest.mark.process
@pytest.mark.slow
def test_no_more_often_than_wanted(tmp_path):
    """Everything from batch 10 on is spoilt: three times back, then the error with rank and op."""
    job = write_job(tmp_path, most=3)
    batches = ",".join(map(str, range(10, 60)))
    code, _, errors = poisoned(tmp_path, "nan", batches, job, "--out", str(tmp_path / "run"))
    assert code == 1
    assert "step 10: loss or gradient is not finite; going back to step 8 and on without batches 9, 10" in errors
    assert errors.count("; going back to step ") == 3
    assert "loss or gradient is not finite; first on rank" in errors
    assert "Traceback" not in errors


@pytest.mark.process
@pytest.mark.slow
def test_the_first_bad_step_is_named_where_hosts_look_later(tmp_path):
    job = runs.write_job(tmp_path, train={"steps": 30, "threads": 1, "log_every": 4})
    code, _, errors = poisoned(tmp_path, "nan, seen late", "5", job, "--out", str(tmp_path / "run"))
    assert code == 1
    assert "step 5: loss or gradient is not finite; first on rank" in errors


@pytest.mark.process
def test_two_checkpoints_must_be_kept(tmp_path):
    job = runs.write_job(tmp_path, train={"rollback": {}, "checkpoints": {"keep": 1}})
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "train.checkpoints.keep = 1" in done.stderr
