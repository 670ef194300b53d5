"""SmolLM2-135M, whole: in, asked, fine-tuned on several grids, with and without adapters, and out.

Skipped unless FOURFOLD_REAL_MODEL names the directory that `make_real_model.py` has written.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.runtime import runs
from twin.cli import main

MODEL = os.environ.get("FOURFOLD_REAL_MODEL", "")
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL, reason="FOURFOLD_REAL_MODEL names no directory of SmolLM2; see make_real_model.py"),
]
STEPS = 50
IMPORT_SECONDS = 60  # a requirement, not a timing: it takes five
TRAIN = {
    "full": ["--set", "train.learning_rate.peak=1e-5"],
    "lora": ["--set", "lora.rank=8", "--set", "lora.targets=[q,k,v,o,gate,up,down]"],
}
GRIDS = {1: "{}", 2: "{z: 2}", 4: "{z: 2, x: 2}"}


def do(*arguments: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert not ended.value.code


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "import"
    begin = time.monotonic()
    do("import", MODEL, "--out", out, "--set", "model.sequence=64", "--set", "precision=fp32")
    assert time.monotonic() - begin < IMPORT_SECONDS
    return out


def test_it_knows_the_capital_of_france(imported, capsys):
    capsys.readouterr()
    do("sample", imported, "--prompt", "The capital of France is", "--tokens", "3", "--temperature", "0")
    assert "Paris" in capsys.readouterr().out


def test_its_loss_is_that_of_transformers(imported, capsys):
    expected = float(load_file(Path(MODEL) / "answer.safetensors")["loss"][0])
    capsys.readouterr()
    do("eval", imported, "--data", Path(MODEL) / "text.txt", "--json")
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", TRAIN)
def test_fine_tuning_is_the_same_on_every_grid(kind, imported, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number, path in enumerate(sorted(Path(runs.__file__).parent.glob("*.py"))[:20]):
        (text / f"{number}.txt").write_text(path.read_text())
    do("data", tmp_path / "data", "--text", text, "--tokenizer", imported / "huggingface" / "tokenizer.json")
    found = {}
    for ranks, grid in GRIDS.items():
        out = tmp_path / f"run{ranks}"
        options = ["--set", f"ranks={ranks}", "--set", f"grid={grid}", "--set", "batch.sequences=2"]
        options += ["--set", f"train.steps={STEPS}", "--set", f"train.data={tmp_path / 'data'}"]
        options += ["--set", "train.sample.tokens=0", "--set", "train.evaluation.sequences=0"]
        options += ["--set", "train.checkpoints.every=0", *TRAIN[kind]]
        done = runs.train(imported / "job.yaml", "--ranks", str(ranks), "--out", str(out), *options, timeout=3600)
        assert done.returncode == 0, done.stderr
        found[ranks] = runs.losses(out)
    assert len(found[1]) == STEPS
    for ranks in (2, 4):
        assert max(abs(found[ranks][step] - found[1][step]) for step in found[1]) < 1e-4
