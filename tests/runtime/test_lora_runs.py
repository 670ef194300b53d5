"""Training adapters from the command line: start, go on elsewhere, ask, merge, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.runtime import runs
from twin.cli import main

pytestmark = pytest.mark.process

LORA = {"rank": 8, "targets": ["q", "v", "o", "up"]}
TRAIN = {"steps": 20, "learning_rate": {"peak": 0.01}, "evaluation": {"sequences": 64, "every": 0}}


def do(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code or 0


@pytest.fixture(scope="module")
def trained(undisturbed: runs.Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base of one file, and a run of adapters beside it, both of which lie in one folder."""
    folder = tmp_path_factory.mktemp("lora")
    assert do("export", undisturbed(12).out, folder / "base.safetensors") == 0
    job = runs.write_job(folder, lora=LORA, train={**TRAIN, "initial_weights": "base.safetensors"})
    done = runs.train(job, "--ranks", "2", "--out", str(folder / "run"))
    assert done.returncode == 0, done.stderr
    assert "parameters of adapters beside" in done.stdout
    return job, folder / "run"


def validation(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["validation_loss"] for line in lines if "validation_loss" in line]


def asked(capsys: Any, *arguments: Any) -> float:
    capsys.readouterr()
    assert do("eval", *arguments, "--json") == 0
    return float(json.loads(capsys.readouterr().out)["loss"])


@pytest.mark.full
def test_adapters_learn_and_their_checkpoints_are_small(trained):
    _, run = trained
    before, after = validation(run)
    assert after < before
    newest = max((run / "checkpoints").iterdir())
    weights = sum(p.stat().st_size for p in newest.glob("*.safetensors"))
    assert weights < 0.5 * (run.parent / "base.safetensors").stat().st_size * 3


@pytest.mark.full
def test_a_run_goes_on_on_another_grid_as_if_it_had_not_stopped(trained, tmp_path):
    job, run = trained
    constant = ("--set", "train.learning_rate.schedule=constant")
    shorter = ("--set", "train.steps=4", *constant)
    longer = ("--set", "train.steps=8", *constant)
    for changes in (shorter, (*longer, "--set", "grid={y: 2}", "--accept-changes")):
        done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"), *changes)
        assert done.returncode == 0, done.stderr
    straight = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "straight"), *longer)
    assert straight.returncode == 0, straight.stderr
    found, expected = runs.losses(tmp_path / "run"), runs.losses(tmp_path / "straight")
    assert list(found) == list(expected) == list(range(8))
    assert all(math.isclose(found[step], expected[step], rel_tol=1e-5) for step in expected)
    assert run.exists()


@pytest.mark.full
def test_merged_weights_are_as_good_as_the_run(trained, tmp_path, capsys):
    job, run = trained
    last = validation(run)[-1]
    assert asked(capsys, run) == pytest.approx(last, rel=1e-5)
    assert do("export", run, tmp_path / "merged.safetensors") == 0
    merged, base = (load_file(path) for path in (tmp_path / "merged.safetensors", run.parent / "base.safetensors"))
    changed = {name for name in base if not merged[name].equal(base[name])}
    wanted = {f"blocks.{i}.{linear}.weight" for i in range(2) for linear in ("qkv", "projection", "mlp_up")}
    assert merged.keys() == base.keys()
    assert changed == wanted
    on = ("--set", "lora=null", "--set", f"train.initial_weights={tmp_path / 'merged.safetensors'}")
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "on"), *on, "--set", "train.steps=1")
    assert done.returncode == 0, done.stderr
    assert validation(tmp_path / "on")[0] == pytest.approx(last, rel=1e-5)


@pytest.mark.full
def test_another_base_is_refused(trained, tmp_path, capsys):
    _, run = trained
    base = load_file(run.parent / "base.safetensors")
    base["head.weight"][0, 0] += 1.0
    other = tmp_path / "other.safetensors"
    save_file(base, other, {"format": "pt"})
    assert do("eval", run, "--set", f"train.initial_weights={other}") == 2
    assert "other weights than the adapters were trained beside" in capsys.readouterr().err
    assert do("eval", run, "--set", f"train.initial_weights={tmp_path / 'gone'}") == 2
    assert "not there any more" in capsys.readouterr().err


@pytest.mark.full
def test_what_does_not_go_together_is_refused(trained, tmp_path, capsys):
    job, run = trained
    out = str(tmp_path / "run")
    assert do("train", job, "--out", out, "--set", "lora=null", "--set", "train.initial_adapters=x") == 2
    assert "adapters need lora" in capsys.readouterr().err
    assert do("train", job, "--out", out, "--set", "lora.targets=[gate]") == 2
    assert "is of SwiGLU" in capsys.readouterr().err
    assert do("simulate", job, "--set", "communication_precision.gathers=fp32", "--set", "precision=bf16") == 2
    assert "no fp32 form" in capsys.readouterr().err
    assert do("export", run, tmp_path / "adapters", "--peft") == 2
    assert "hf:DIR" in capsys.readouterr().err
    assert not (tmp_path / "adapters").exists()
    assert do("eval", run, "--set", "lora.alpha=99") == 2
    assert "were trained with" in capsys.readouterr().err
    before = sorted(path.name for path in run.rglob("*"))
    (tmp_path / "empty").mkdir()
    bad = ("--force", "--set", f"train.initial_adapters={tmp_path / 'empty'}")
    assert runs.train(job, "--ranks", "2", "--out", str(run), *bad).returncode == 2
    assert sorted(path.name for path in run.rglob("*")) == before
    done = runs.train(job, "--ranks", "2", "--out", str(run), "--set", "lora.rank=9")
    assert done.returncode == 2
    assert "lora" in done.stderr
