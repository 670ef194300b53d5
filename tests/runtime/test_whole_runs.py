"""Runs from the command line to their end: precisions, options, weights in and out, numbers that break."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.records.console import Display, Stopwatch
from tests.runtime import runs
from twin.cli import main

pytestmark = pytest.mark.process


@pytest.fixture
def finished(undisturbed: runs.Undisturbed) -> tuple[Path, Path]:
    """A job of two ranks that has been trained, and its run."""
    whole = undisturbed(12)
    assert "sample:" in whole.done.stdout
    assert whole.done.stderr == ""
    return whole.job, whole.out


@pytest.fixture(scope="module")
def again(undisturbed: runs.Undisturbed) -> tuple[subprocess.CompletedProcess[str], str]:
    """The same command once more, and what metrics said before."""
    whole = undisturbed(12)
    before = (whole.out / "metrics.jsonl").read_text()
    return runs.train(whole.job, "--ranks", "2", "--out", str(whole.out)), before


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.quick
def test_metrics_say_what_happened(finished):
    _, out = finished
    steps = [line for line in lines(out) if "step" in line]
    assert [line["step"] for line in steps] == list(range(12))
    assert [line["tokens"] for line in steps] == [8 * 16 * (i + 1) for i in range(12)]
    assert all(line["gradient_norm"] > 0 and line["memory_bytes"] > 1e7 for line in steps)
    assert all(line["model_flops_utilisation"] is None for line in steps)  # nobody knows this CPU's peak
    rates = [line["learning_rate"] for line in steps]
    assert rates[0] == pytest.approx(1e-3)  # a tenth of 12 steps is one step of warm-up
    assert rates == sorted(rates, reverse=True)
    validation = [line["validation_loss"] for line in lines(out) if "validation_loss" in line]
    assert len(validation) == 2  # at the start and at the end
    assert validation[1] < validation[0]


def test_a_finished_run_is_not_trained_further(again, undisturbed):
    whole, (done, _) = undisturbed(12), again
    assert done.returncode == 0, done.stderr
    assert "after step 12" in done.stdout
    assert runs.losses(whole.out) == whole.losses


@pytest.mark.slow
def test_a_run_is_extended(finished, tmp_path):
    job, _ = finished
    out = tmp_path / "run"
    for steps in (4, 8):
        steps_to_do = ("--set", f"train.steps={steps}", "--accept-changes")
        done = runs.train(job, "--ranks", "2", "--out", str(out), *steps_to_do)
        assert done.returncode == 0, done.stderr
    assert list(runs.losses(out)) == list(range(8))


def export(run: Path, target: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), str(target)])
    assert not ended.value.code


def with_weights(folder: Path, weights: dict[str, torch.Tensor], **changes) -> Path:
    save_file(weights, folder / "model.safetensors")
    return runs.write_job(folder, train={"initial_weights": "model.safetensors", **changes.pop("train", {})}, **changes)


def test_weights_go_out_and_come_in(finished, tmp_path):
    """What one run ends with another starts with, on another grid."""
    _, out = finished
    export(out, tmp_path / "model.safetensors")
    job = with_weights(
        tmp_path,
        load_file(tmp_path / "model.safetensors"),
        ranks=1,
        grid={"data": 1, "z": 1, "y": 1, "x": 1},
        train={"steps": 1},
    )
    done = runs.train(job, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    ended = [line["validation_loss"] for line in lines(out) if "validation_loss" in line][-1]
    begins = next(line["validation_loss"] for line in lines(tmp_path / "run") if "validation_loss" in line)
    assert begins == pytest.approx(ended, rel=1e-6)


def test_the_rank_and_op_of_the_first_number_that_is_none(finished, tmp_path):
    """Rows 96… of a weight belong to y = 1 alone: that rank is named, with the product they go into."""
    _, out = finished
    export(out, tmp_path / "start.safetensors")
    weights = load_file(tmp_path / "start.safetensors")
    weights["blocks.1.mlp_up.weight"][96:] = 1e38
    job = with_weights(tmp_path, weights, grid={"data": 1, "z": 1, "y": 2, "x": 1})
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert done.stderr.count("not finite") == 1
    assert "step 0: loss or gradient is not finite" in done.stderr
    assert "rank 1 (data 0, z 0, y 1, x 0): micro0/fwd/block1/mlp_up/gemm" in done.stderr
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_weights_that_are_no_numbers_are_named(finished, tmp_path):
    _, out = finished
    export(out, tmp_path / "start.safetensors")
    weights = load_file(tmp_path / "start.safetensors")
    weights["blocks.0.norm1.weight"][3] = float("nan")
    job = with_weights(tmp_path, weights)
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert "weights of blocks.0.norm1.weight" in done.stderr


OPTIONS = {
    "bf16": {"precision": "bf16"},
    "everything": {
        "precision": "bf16",
        "recompute": True,
        "dropout": 0.1,
        "attention": "plain",
        "data_reduction": {"mode": "sharded"},
        "grid": {"data": 2, "z": 1, "y": 1, "x": 1},
        "model": {**runs.SMALL["model"], "activation": "swiglu", "positions": "rotary", "biases": False},
        "train": {
            "goldfish": {"k": 4, "h": 3},
            "gemm_modes": "tuned",
            "log_every": 5,
            "tensorboard": True,
            "deterministic": True,
            "sample": {"tokens": 3, "temperature": 0},
        },
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_train_together(tmp_path, options):
    pytest.importorskip("tensorboard")
    job = runs.write_job(tmp_path, **options)
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    validation = [line["validation_loss"] for line in lines(tmp_path / "run") if "validation_loss" in line]
    assert validation[-1] < validation[0] - 0.05
    if "train" in options:
        assert "natural mode" in done.stdout
        assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.slow
def test_nothing_is_saved_once_a_number_is_none(tmp_path):
    """With a decay that blows weights up at once, whichever steps are looked at, clipped or not."""
    for clip in (True, False):
        job = runs.write_job(
            tmp_path,
            ranks=1,
            grid={"data": 1, "z": 1, "y": 1, "x": 1},
            clip_gradients=clip,
            train={
                "optimizer": {"weight_decay": 1e12},
                "log_every": 20,
                "steps": 40,
                "checkpoints": {"every": 1, "keep": 50},
            },
        )
        out = tmp_path / f"run-{clip}"
        done = runs.train(job, "--out", str(out))
        assert done.returncode == 1
        assert "is not finite" in done.stderr
        for checkpoint in (out / "checkpoints").iterdir():
            export(checkpoint, tmp_path / f"{clip}-{checkpoint.name}.safetensors")
            weights = load_file(tmp_path / f"{clip}-{checkpoint.name}.safetensors")
            assert all(bool(torch.isfinite(w).all()) for w in weights.values()), checkpoint


def test_pauses_do_not_count_as_training_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("runtime.records.console.time.perf_counter", lambda: now[0])
    watch = Stopwatch()
    now[0] += 3
    with watch.paused():
        now[0] += 50
    now[0] += 4
    assert watch.lap() == 7
    now[0] += 1
    assert watch.lap() == 1


def test_lines_of_metrics_are_neither_doubled_nor_lost(finished, again):
    (_, out), (done, before) = finished, again
    assert done.returncode == 0, done.stderr
    assert (out / "metrics.jsonl").read_text() == before
    assert [line["after_steps"] for line in lines(out) if "after_steps" in line] == [0, 12]


def test_a_trace_of_steps_that_are_over_is_refused(finished, tmp_path):
    job, out = finished
    done = runs.train(job, "--ranks", "2", "--out", str(out), "--trace", str(tmp_path / "trace"))
    assert done.returncode == 2
    assert done.stderr.count("the run goes on at step 12") == 1


@pytest.mark.slow
def test_compiled_kernels_train_as_plain_ones(finished, tmp_path):
    """torch.compile needs a C++ compiler and its time."""
    _, out = finished
    job = runs.write_job(tmp_path, train={"compile": True})
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    plain = list(runs.losses(out).values())
    assert list(runs.losses(tmp_path / "run").values()) == pytest.approx(plain, rel=1e-5)


def test_some_twenty_lines_are_shown_whatever_steps_have_figures(capsys):
    """Steps that were multiples of both were shown alone: three of fifteen, and two of a thousand steps' 76."""
    for steps, every in ((103, 7), (1000, 13), (1000, 1), (10, 1)):
        display = Display(shown=True, steps=steps, start=0)
        logged = [step for step in range(steps) if (step + 1) % every == 0 or step == steps - 1]
        for step in logged:
            display.step({"step": step, "loss": 1.0, "memory_bytes": 0})
        shown = capsys.readouterr().out.splitlines()
        assert min(len(logged), 15) <= len(shown) <= 21
        display.step({"step": steps // 3, "loss": 1.0, "memory_bytes": 0})  # gone back
        assert capsys.readouterr().out.startswith(f"step {steps // 3 + 1:>{len(str(steps))}}/")
        assert shown[-1].startswith(f"step {steps}/{steps}")
