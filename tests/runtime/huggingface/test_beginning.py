"""What a run starts from: looked into before anything is deleted for it, and in the words that it knows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.checkpoint.full_model import export_model, open_weights
from runtime.data.build import build_dataset
from runtime.data.tokenizer import ByteTokenizer, JsonTokenizer
from runtime.data.words import words_of
from runtime.huggingface.weights import changed, check_same
from tests.runtime import runs
from tests.runtime.huggingface import tasks
from twin.description.huggingface import model_of, read_config, read_model
from twin.description.huggingface_config import config_of
from twin.description.problems import DescriptionError

tokenizers = pytest.importorskip("tokenizers")
TEXTS = [f"w{i} w{i + 1} w{i + 2} w{i + 3} w{2 * i} w{i} w{i + 1} w{i + 2} w5 w6 w7" for i in range(40)]


def words(path: Path, shift: int = 0, more: int = 0) -> Path:
    """Write a tokenizer whose tokens are w0, w1, …, by numbers that are shifted round."""
    count = int(read_config(tasks.DATA / "llama")["vocab_size"])
    known = {f"w{i}": (i + shift) % count for i in range(count)} | {f"v{i}": count + i for i in range(more)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(path))
    return path


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tasks.DATA / "llama", tmp_path / "llama"))
    words(folder / "tokenizer.json")
    return folder


def job(folder: Path, llama: Path, data: Path, **train: object) -> Path:
    return runs.write_job(
        folder,
        model={"preset": f"hf:{llama}", "sequence": 8},
        ranks=1,
        grid={"data": 1, "z": 1, "y": 1, "x": 1},
        train={"steps": 2, "initial_weights": f"hf:{llama}", "sample": {"tokens": 0}, "data": str(data), **train},
    )


@pytest.mark.process
def test_data_in_other_words_are_refused_unless_that_is_wanted(tmp_path: Path, llama: Path) -> None:
    build_dataset(tmp_path / "other", TEXTS, JsonTokenizer(words(tmp_path / "t.json", shift=1)), 0.3)
    build_dataset(tmp_path / "own", TEXTS, JsonTokenizer(llama / "tokenizer.json"), 0.3)
    build_dataset(tmp_path / "bytes", [chr(1 + i % 30) * (i + 12) for i in range(40)], ByteTokenizer(), 0.3)
    for data, what in ((tmp_path / "bytes", "is in bytes"), (tmp_path / "other", "is in tokens of")):
        out = tmp_path / f"run-{what[6:9]}"
        done = runs.train(job(tmp_path, llama, data), "--out", str(out))
        assert done.returncode == 2, done.stderr
        assert "train.data" in done.stderr
        assert what in done.stderr
        assert f"--tokenizer {llama / 'tokenizer.json'}" in done.stderr
        assert "Traceback" not in done.stderr
        assert not out.exists()
    out = tmp_path / "run"
    done = runs.train(job(tmp_path, llama, tmp_path / "own"), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "huggingface" / "tokenizer.json").is_file()
    done = runs.train(job(tmp_path, llama, tmp_path / "other", other_tokenizer=True), "--out", str(out), "--force")
    assert done.returncode == 0, done.stderr
    assert not (out / "huggingface" / "tokenizer.json").exists()
    assert (out / "huggingface" / "config.json").is_file()


def test_words_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    path = words(tmp_path / "tokenizer.json", more=2)
    known = tokenizers.Tokenizer.from_file(str(path))
    known.add_special_tokens(["<s>"])
    known.save(str(path))
    assert words_of(path) == known.get_vocab(with_added_tokens=True)
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], unk_id=0))
    unigram.save(str(path))
    assert words_of(path) == unigram.get_vocab()
    for damaged in ("", "[]", "{}", '{"model": 3}', '{"model": {"vocab": 3}, "added_tokens": 4}'):
        path.write_text(damaged)
        assert words_of(path) is None
    assert words_of(tmp_path / "none.json") is None


@pytest.mark.process
@pytest.mark.parametrize("form", ["directory", "file"])
def test_a_run_is_not_deleted_for_weights_that_do_not_fit(tmp_path: Path, llama: Path, form: str) -> None:
    build_dataset(tmp_path / "own", TEXTS, JsonTokenizer(llama / "tokenizer.json"), 0.3)
    made, out = job(tmp_path, llama, tmp_path / "own"), tmp_path / "run"
    done = runs.train(made, "--out", str(out))
    assert done.returncode == 0, done.stderr
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    if form == "directory":
        damaged = llama / "model-00004-of-00004.safetensors"
        given = f"hf:{llama}"
    else:
        damaged = tmp_path / "full.safetensors"
        export_model(out, damaged)
        given = str(damaged)
    weights = load_file(damaged)
    weights.pop(next(name for name in weights if name.endswith("weight")))
    save_file(weights, damaged, {"format": "pt"})
    done = runs.train(made, "--out", str(out), "--force", "--set", f"train.initial_weights={given}")
    assert done.returncode == 2, done.stderr
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()} == before


@pytest.mark.process
def test_a_run_is_its_newest_checkpoint_whatever_lies_beside(tmp_path: Path, llama: Path) -> None:
    build_dataset(tmp_path / "own", TEXTS, JsonTokenizer(llama / "tokenizer.json"), 0.3)
    out = tmp_path / "run"
    assert runs.train(job(tmp_path, llama, tmp_path / "own"), "--out", str(out)).returncode == 0
    export_model(out, out / "model.safetensors")
    old = load_file(out / "model.safetensors")
    done = runs.train(job(tmp_path, llama, tmp_path / "own", steps=4), "--out", str(out), "--accept-changes")
    assert done.returncode == 0, done.stderr
    with open_weights(out) as found:
        assert found.path.name == "step-00000004"
        name, (_, shape) = next(iter(found.entries.items()))
        assert not torch.equal(found.read(name, (0,) * len(shape), shape), old[name])


def test_what_may_differ_from_weights_is_said_and_the_rest_refused(llama: Path) -> None:
    there = read_model(llama, 8)
    assert changed(there, there) is None
    longer = there.model_copy(update={"rotary_base": 2 * there.rotary_base})
    assert f"model.rotary_base is {there.rotary_base} there, {longer.rotary_base} here" in str(changed(longer, there))
    check_same(longer, there, llama)
    with pytest.raises(DescriptionError, match="norm_epsilon"):
        check_same(there.model_copy(update={"norm_epsilon": 0.1}), there, llama)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_window_of_qwen_goes_out_as_it_came_in(family: str) -> None:
    came = read_config(tasks.DATA / family)
    layers = int(came["num_hidden_layers"])
    slides = ["full_attention", *["sliding_attention"] * (layers - 1)]
    came |= {"layer_types": slides, "sliding_window": 12, "use_sliding_window": True}
    model = model_of(came, "m", 8)
    out = config_of(model, "F32", base=came)
    assert {key: out[key] for key in ("layer_types", "sliding_window", "use_sliding_window")} == {
        key: came[key] for key in ("layer_types", "sliding_window", "use_sliding_window")
    }
    assert model_of(config_of(model, "F32", family), "m", 8).window == 12
    without = config_of(model.model_copy(update={"window": None}), "F32", base=json.loads(json.dumps(came)))
    assert (without["use_sliding_window"], without["sliding_window"]) == (False, None)
    assert "layer_types" not in without
