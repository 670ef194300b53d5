"""`sample` and `eval` of an import: the loss is that of transformers' logits, the text their likeliest tokens."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from tests.runtime.huggingface.tasks import DATA
from tests.runtime.runs import environment

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.process


def fourfold(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twin", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment())


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose tokens are the words w0, w1, …"""
    folder = tmp_path_factory.mktemp("import")
    shutil.copytree(DATA / "llama", folder / "hf")
    vocabulary = json.loads((folder / "hf" / "config.json").read_text())["vocab_size"]
    words = {f"w{i}": i for i in range(vocabulary)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "hf" / "tokenizer.json"))
    done = fourfold("import", str(folder / "hf"), "--out", str(folder / "run"), "--set", "precision=fp32")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def text_of(tokens: torch.Tensor) -> str:
    return " ".join(f"w{i}" for i in tokens.tolist())


@pytest.mark.parametrize("grid", ["{}", "{x: 2}", "{z: 2}"])
def test_the_loss_is_that_of_transformers_logits(imported, tmp_path, grid):
    known = load_file(DATA / "llama" / "answer.safetensors")
    text = tmp_path / "texts.jsonl"
    text.write_text("".join(json.dumps({"text": text_of(row)}) + "\n" for row in known["tokens"]))
    ranks = "1" if grid == "{}" else "2"
    done = fourfold("eval", str(imported), "--data", str(text), "--json", "--ranks", ranks, "--set", f"grid={grid}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = functional.cross_entropy(known["logits"][:, :-1].flatten(0, 1), known["tokens"][:, 1:].flatten())
    assert found["loss"] == pytest.approx(float(expected), abs=1e-5)
    assert found["tokens"] == known["tokens"][:, 1:].numel()


def test_the_likeliest_token_comes_next(imported):
    known = load_file(DATA / "llama" / "answer.safetensors")
    prompt = text_of(known["tokens"][0])
    done = fourfold("sample", str(imported), "--prompt", prompt, "--tokens", "1", "--temperature", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == [int(known["logits"][0, -1].argmax())]


def test_an_import_has_no_steps(imported):
    done = fourfold("eval", str(imported), "--step", "3")
    assert done.returncode == 2
    assert "--step = 3:" in done.stderr
    assert "is an import: nothing has been trained" in done.stderr


def test_a_data_set_in_other_words_is_refused(imported, tmp_path):
    """Of a tokenizer of as many words that has two of them the other way round."""
    described = json.loads((imported / "huggingface" / "tokenizer.json").read_text())
    described["model"]["vocab"] |= {"w1": 0, "w0": 1}
    tokenizer = tmp_path / "other.json"
    tokenizer.write_text(json.dumps(described))
    text = tmp_path / "texts.jsonl"
    text.write_text("".join(json.dumps({"text": f"w{i % 7} w{i % 5} w2 " * 20}) + "\n" for i in range(200)))
    made = fourfold("data", str(tmp_path / "data"), "--jsonl", str(text), "--tokenizer", str(tokenizer))
    assert made.returncode == 0, made.stderr
    done = fourfold("eval", str(imported), "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert "which are other words to a model that knows those of" in " ".join(done.stderr.split())
