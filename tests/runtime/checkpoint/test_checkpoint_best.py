"""The checkpoint with the least validation loss stays, whatever its age, and a continued run knows it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.checkpoint.storage import Writer
from runtime.plan.options import located
from runtime.plan.plan import Plan
from runtime.survive.history import History
from runtime.train.saving import Saving
from runtime.train.state import State
from tests.runtime import runs
from tests.runtime.checkpoint import tasks
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES

pytestmark = pytest.mark.process
WORSE = {
    "learning_rate": {"schedule": "wsd", "peak": 0.5, "warmup_steps": 12, "decay_steps": 0},
    "evaluation": {"every": 2, "sequences": 8},
    "checkpoints": {"every": 3, "keep": 1, "best": True},
}


def validation(out: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["after_steps"]: line["validation_loss"] for line in lines if "validation_loss" in line}


def kept(out: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*"))


def test_the_best_is_kept_beside_the_newest(tmp_path):
    """With a rate that rises far too high weights are soon worse than they were: the best is none of the newest."""
    train = {**WORSE, "steps": 12}
    job, out = runs.write_job(tmp_path, train=train), tmp_path / "run"
    done = runs.train(job, "--ranks", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    losses = validation(out)
    assert sorted(losses) == [0, 2, 4, 6, 8, 10, 12]
    best = min((step for step in losses if step), key=losses.__getitem__)
    assert best < 12
    assert kept(out) == [best, 12]
    assert f"step {best}: the best so far, kept" in done.stdout

    further = runs.train(job, "--ranks", "2", "--out", str(out), "--set", "train.steps=16", "--accept-changes")
    assert further.returncode == 0, further.stderr
    losses = validation(out)
    assert sorted(losses) == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert min((step for step in losses if step), key=losses.__getitem__) == best
    assert kept(out) == [best, 16]


def test_a_run_that_gets_better_keeps_its_last(tmp_path):
    train = {**WORSE, "steps": 6, "learning_rate": {"peak": 1e-3}}
    out = tmp_path / "run"
    done = runs.train(runs.write_job(tmp_path, train=train), "--ranks", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    losses = validation(out)
    assert min(losses, key=losses.__getitem__) == 6
    assert kept(out) == [6]
    again = runs.train(tmp_path / "job.yaml", "--ranks", "2", "--out", str(out))
    assert again.returncode == 0, again.stderr
    assert kept(out) == [6]


def test_a_best_that_finds_no_space_leaves_the_one_before(tmp_path, monkeypatch):
    """That is the best still, for the disk and for who continues; the same step is tried again."""
    job = load_job(runs.write_job(tmp_path, ranks=1, grid=dict.fromkeys(AXES, 1), train=WORSE))
    trainee = tasks.tiny()
    state, warned = State(History()), []
    saving = Saving(Plan(job, located(job.train), tmp_path / "run"), trainee, trainee.context.mesh, state, None)
    display = SimpleNamespace(warn=warned.append, say=lambda _text: None)

    def judge(step: int, loss: float) -> None:
        state.step = step
        saving.judge(step, loss, display)

    judge(2, 3.0)
    assert kept(tmp_path / "run") == [2]
    with monkeypatch.context() as full:

        def write(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(Writer, "write_data", write)
        judge(4, 2.0)
    assert "No space left on device" in warned[0]
    assert state.best == (2, 3.0)
    assert saving.checkpoints.best == 2
    assert state.saved_at == -1
    judge(6, 2.5)
    saving.close()
    assert state.best == (6, 2.5)
    assert kept(tmp_path / "run") == [6]


def test_a_loss_of_other_held_out_text_is_no_best(tmp_path):
    """With more sequences the same model scored 2.25 where 2.1 was the best: until it fell below, nothing was kept."""
    trainee = tasks.tiny()

    def saving_of(sequences: int) -> Saving:
        train = {**WORSE, "evaluation": {**WORSE["evaluation"], "sequences": sequences}}
        job = load_job(runs.write_job(tmp_path, ranks=1, grid=dict.fromkeys(AXES, 1), train=train))
        plan = Plan(job, located(job.train), tmp_path / "run")
        return Saving(plan, trainee, trainee.context.mesh, State(History()), None)

    first = saving_of(2)
    first.state.step = 3
    first.judge(3, 2.1, SimpleNamespace(warn=pytest.fail, say=lambda _text: None))
    first.close()
    extra = first._extra()
    for sequences, best in ((2, (3, 2.1)), (4, None)):
        again = saving_of(sequences)
        again.best_again(extra)
        assert again.state.best == best
        assert again.checkpoints.best == 3  # which is not deleted before another is
        again.close()


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"checkpoints": {"best": True}, "evaluation": {"sequences": 0}}, "train.checkpoints.best = True: needs"),
        ({"learning_rate": {"decay_steps": 3}}, "train.learning_rate.decay_steps = 3: is of schedule wsd"),
        ({"learning_rate": {"schedule": "constant", "least": 1e-4}}, "train.learning_rate.least = 0.0001: a constant"),
        ({"learning_rate": {"schedule": "step"}}, "train.learning_rate.schedule"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path, train, words):
    done = runs.train(runs.write_job(tmp_path, train=train), "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "run").exists()
