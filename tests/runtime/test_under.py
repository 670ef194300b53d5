"""`--strategy` of every command is one job: what is predicted or recorded for it is what trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.strategies import refuse
from runtime.train.under import needed
from tests.runtime import runs
from tests.runtime.asked import ask_here
from twin.strategies import load_job

TINY = Path(__file__).parents[2] / "examples" / "tiny-gpt.yaml"


def predicted(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> dict[str, Any]:
    """The job that `simulate` writes."""
    ask_here(capsys, "simulate", TINY, "--out", folder, *options)
    found: dict[str, Any] = yaml.safe_load((folder / "job.yaml").read_text())
    return found


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "megatron"])
def test_what_is_predicted_is_what_train_chooses(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's `gather_unit` is of another strategy, and megatron trains with PyTorch's flavour alone."""
    found = predicted(capsys, tmp_path / "run", "--strategy", strategy)
    job = load_job({key: value for key, value in found.items() if key != "train"})
    assert (job.strategy, job.ranks, job.is_concrete) == (strategy, 4, True)
    refuse(job)
    assert strategy != "megatron" or found["flavour"] == "torch"


def test_overrides_hold_under_the_other_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"pipeline": 2, "tensor": 2}
    found = predicted(capsys, tmp_path / "run", "--strategy", "megatron", "--set", f"grid={json.dumps(grid)}")
    assert found["grid"] | grid == found["grid"]


def test_the_files_own_strategy_is_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert needed(TINY, "four_d") == []
    assert predicted(capsys, tmp_path / "a", "--strategy", "four_d") == predicted(capsys, tmp_path / "b")


def test_a_job_that_is_not_trained_is_predicted_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "sequence_parallel=true", "--set", "tensor_overlap=true", "--json"]
    out, err = ask_here(capsys, "simulate", TINY, "--strategy", "megatron", *options)
    assert json.loads(out)["step_seconds"] > 0.0
    assert "train refuses it" in err
    assert "tensor_overlap" in err


def test_goodput_asks_of_the_same_job(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--strategy", "fsdp", "--set", "machine=perlmutter", "--json"]
    steps = [
        json.loads(ask_here(capsys, command, TINY, *options, *more)[0])["step_seconds"]
        for command, more in (("simulate", ()), ("goodput", ("--seeds", 2)))
    ]
    assert steps[0] == steps[1]


def test_a_recorded_schedule_has_its_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = tmp_path / "recorded.json"
    assert "--strategy" in ask_here(capsys, "simulate", "--schedule", schedule, "--strategy", "fsdp", code=2)[1]


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_compare_takes_the_prediction_for_the_run(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = runs.write_job(tmp_path, train={"steps": 2, "learning_rate": {"warmup_steps": 0}})
    traced = ["--trace", str(tmp_path / "measured"), "--trace-steps", "1"]
    done = runs.train(job, "--strategy", strategy, "--ranks", "2", "--out", str(tmp_path / "run"), *traced)
    assert done.returncode == 0, done.stderr
    assert "sequence" in done.stdout.partition("left open by the job, and chosen by simulation: ")[2]
    ask_here(capsys, "simulate", job, "--strategy", strategy, "--out", tmp_path / "predicted")
    out, _ = ask_here(capsys, "compare", tmp_path / "predicted", tmp_path / "measured", "--json")
    assert json.loads(out)["measured_seconds"] > 0.0
