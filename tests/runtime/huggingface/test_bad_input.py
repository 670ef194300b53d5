"""What is wrong with a directory is said by key, nothing is half-written, and nothing that runs is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.huggingface.weights import initial_weights
from tests.runtime.huggingface import tasks
from twin.cli import main
from twin.description.problems import DescriptionError

Weights = dict[str, torch.Tensor]
QUERY, INDEX = "model.layers.0.self_attn.q_proj.weight", "model.safetensors.index.json"


def of_weights(change: Callable[[Weights], object]) -> Callable[[Path], None]:
    """Write changed weights into one file."""

    def do(folder: Path) -> None:
        weights: Weights = {}
        for path in sorted(folder.glob("model*.safetensors")):
            weights |= load_file(path)
            path.unlink()
        (folder / INDEX).unlink(missing_ok=True)
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return do


def of_config(**changes: Any) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return do


def of_index(change: Callable[[dict[str, str]], object]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        raw = json.loads((folder / INDEX).read_text())
        change(raw["weight_map"])
        (folder / INDEX).write_text(json.dumps(raw))

    return do


def of_header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the header of a file, whose data stays."""

    def do(folder: Path) -> None:
        path = folder / "model-00001-of-00004.safetensors"
        raw = path.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        table = json.loads(raw[8:end])
        change(table)
        text = json.dumps(table).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])

    return do


def of_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        path = folder / "model-00001-of-00004.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return do


def only_pickles(name: str) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        for path in folder.glob("model*"):
            path.unlink()
        (folder / name).write_bytes(b"\x80\x02cos\nsystem\n")

    return do


def first(table: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(value for key, value in table.items() if key != "__metadata__")
    return found


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": (
        "llama",
        of_weights(lambda w: w.pop(QUERY)),
        f"{QUERY}: is missing; the model needs it, with shape [16, 16]",
    ),
    "extra": ("llama", of_weights(lambda w: w.update(score=w[QUERY].clone())), "score: is not a tensor of this model"),
    "misspelt": (
        "llama",
        of_weights(lambda w: w.update({"lm_heat.weight": w.pop("lm_head.weight")})),
        "lm_heat.weight: is not a tensor of this model; did you mean 'lm_head.weight'?",
    ),
    "shape": (
        "llama",
        of_weights(lambda w: w.update({QUERY: w[QUERY][:8]})),
        "has shape [8, 16]; the model needs [16, 16]",
    ),
    "ints": ("llama", of_weights(lambda w: w.update({QUERY: w[QUERY].to(torch.int8)})), "has dtype I8; F32, F16, BF16"),
    "doubles": ("llama", of_weights(lambda w: w.update({QUERY: w[QUERY].double()})), "has dtype F64"),
    "mixed": ("llama", of_weights(lambda w: w.update({QUERY: w[QUERY].half()})), "is made of different dtypes"),
    "untied": (
        "qwen2",
        of_config(tie_word_embeddings=False),
        "lm_head.weight: is missing; the model needs it, with shape [37, 16]; a model whose head is the table",
    ),
    "two heads": (
        "qwen2",
        of_weights(lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"] + 1})),
        "lm_head.weight: differs from model.embed_tokens.weight, and config.json ties them",
    ),
    "twice": (
        "gpt2",
        of_weights(lambda w: w.update({"wte.weight": w["transformer.wte.weight"].clone()})),
        "is there twice, by two names",
    ),
    "biases here": ("qwen2", of_config(model_type="llama"), "self_attn.q_proj.bias: is not a tensor of this model"),
    "another family": (
        "gpt_neox",
        of_config(model_type="llama", hidden_act="silu", rope_parameters=None, attention_bias=False),
        "model.embed_tokens.weight: is missing",
    ),
    "an unknown one": (
        "llama",
        of_config(model_type="deepseek_v3"),
        "model_type = 'deepseek_v3': is not a family known here",
    ),
    "quantized": ("llama", of_config(quantization_config={"bits": 4}), "quantization_config: weights are quantized"),
    "truncated": ("llama", of_bytes(lambda raw: raw[:-1]), "00001-of-00004.safetensors: is truncated"),
    "cut in the header": ("llama", of_bytes(lambda raw: raw[:100]), "is truncated"),
    "empty": ("llama", of_bytes(lambda _: b""), "is truncated"),
    "long header": ("llama", of_bytes(lambda raw: b"\xff" * 8 + raw[8:]), "its header is too long"),
    "no JSON": ("llama", of_bytes(lambda raw: raw[:8] + b"(" + raw[9:]), "its header is not JSON"),
    "beyond the end": (
        "llama",
        of_header(lambda t: first(t).update(data_offsets=[1 << 40, (1 << 40) + 2368])),
        "overlap or leave a gap",
    ),
    "negative offsets": ("llama", of_header(lambda t: first(t).update(data_offsets=[-2368, 0])), "has a damaged entry"),
    "another size": ("llama", of_header(lambda t: first(t).update(shape=[1 << 40, 1 << 40])), "has a damaged entry"),
    "out of the directory": (
        "llama",
        of_index(lambda m: m.update({QUERY: "../../x.safetensors"})),
        "no safetensors file beside it",
    ),
    "from the root": ("llama", of_index(lambda m: m.update({QUERY: "/etc/passwd"})), "no safetensors file beside it"),
    "a pickle in the index": (
        "llama",
        of_index(lambda m: m.update({QUERY: "model.bin"})),
        "no safetensors file beside it",
    ),
    "no name": ("llama", of_index(lambda m: m.update({QUERY: 3})), "no safetensors file beside it"),
    "a file that is not there": (
        "llama",
        of_index(lambda m: m.update({QUERY: "x.safetensors"})),
        "x.safetensors: no such file",
    ),
    "left out of the index": ("llama", of_index(lambda m: m.pop(QUERY)), f"{QUERY}: is in model-0"),
    "only in the index": (
        "llama",
        of_index(lambda m: m.update(ghost="model-00001-of-00004.safetensors")),
        "ghost: is not in model-00001-of-00004.safetensors, where model.safetensors.index.json has it",
    ),
    "an index of nothing": ("llama", lambda f: (f / INDEX).write_text("{}"), "has no weight_map"),
    "an index that is none": ("llama", lambda f: (f / INDEX).write_text("{"), "is not JSON"),
    "a pickle": ("llama", only_pickles("pytorch_model.bin"), "is a pickle, which runs code when it is read"),
    "an older pickle": ("llama", only_pickles("consolidated.00.pth"), "is a pickle"),
    "another format": ("llama", only_pickles("model.gguf"), "model.gguf: is no safetensors file"),
    "no weights": ("llama", lambda f: [p.unlink() for p in f.glob("model*")], "holds neither model.safetensors nor"),
    "no config": ("llama", lambda f: (f / "config.json").unlink(), "config.json: cannot be read: No such file"),
}


@pytest.fixture
def broken(tmp_path):
    def make(case: str) -> Path:
        family, change, _ = BROKEN[case]
        folder = Path(shutil.copytree(tasks.DATA / family, tmp_path / "model"))
        change(folder)
        return folder

    return make


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize("case", BROKEN)
def test_an_import_says_what_is_wrong_and_writes_nothing(broken, case, tmp_path, capsys):
    folder = broken(case)
    assert run("import", str(folder), "--out", str(tmp_path / "run")) == 2
    said = capsys.readouterr().err
    assert BROKEN[case][2] in " ".join(said.split()), said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("case", sorted(BROKEN.keys() - {"untied", "biases here"}))
def test_a_rank_changes_no_weight(broken, case):
    """The two left out fit the model that the job names, whatever their own config says."""
    folder = broken(case)
    family = BROKEN[case][0]
    model = tasks.build(f"hf:{tasks.DATA / family}")
    before = model.context.store.master.clone()
    with pytest.raises(DescriptionError):
        initial_weights(f"hf:{folder}", model.context)
    assert before.equal(model.context.store.master)


def test_a_pickle_is_refused_by_its_name(tmp_path, capsys):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80")
    assert run("import", str(path), "--out", str(tmp_path / "run")) == 2
    assert "call `save_pretrained`" in " ".join(capsys.readouterr().err.split())


def test_weights_of_another_model_are_refused():
    model = tasks.build({"preset": f"hf:{tasks.DATA / 'llama'}", "heads": 8, "kv_heads": 4})
    with pytest.raises(DescriptionError, match=r"model.heads: is 4 there; the job has 8"):
        initial_weights(f"hf:{tasks.DATA / 'llama'}", model.context)


OPTIONS = {
    "exists": (["import", "LLAMA", "--out", "there"], "there: exists already"),
    "nowhere": (["import", "nowhere", "--out", "run"], "nowhere: no such directory or file"),
    "another model": (["import", "LLAMA", "--out", "run", "--set", "model=gpt2"], "set keys of it"),
    "a key": (["import", "LLAMA", "--out", "run", "--set", "model.layer=3"], "did you mean 'layers'"),
    "no room to write": (["import", "LLAMA", "--out", "/proc/run"], "cannot be written"),
    "dtype": (["export", "LLAMA", "out", "--hf", "--dtype", "bf15"], "did you mean 'bf16'?"),
    "family": (["export", "full", "out", "--hf", "--family", "gpt2"], "model.norm = 'rms': gpt2 has layer"),
    "bytes": (["export", "full", "out", "--hf", "--shard-bytes", "5 gold"], "'gold' is not a unit"),
    "no bytes": (["export", "full", "out", "--hf", "--shard-bytes", "0"], "must be more than nothing"),
    "forced": (["export", "full", "out", "--hf", "--force"], "delete the directory yourself"),
    "without hf": (["export", "full", "out", "--dtype", "bf16"], "goes with --hf"),
    "there": (["export", "full", "there", "--hf"], "there: exists already"),
    "of a stranger": (["export", "LLAMA", "out", "--hf"], "is no checkpoint"),
    "unnamed": (["export", "unnamed.safetensors", "out", "--hf"], "does not say what model it is"),
    "hostile": (["export", "hostile.safetensors", "out", "--hf"], "model.layers"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_what_is_asked_for_is_refused(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    arguments, said = OPTIONS[case]
    (tmp_path / "there").mkdir()
    assert run("import", str(tasks.DATA / "llama"), "--out", "full") == 0
    save_file({"head.weight": torch.ones(2, 2)}, "unnamed.safetensors")
    save_file({"head.weight": torch.ones(2, 2)}, "hostile.safetensors", {"model": '{"layers": -1}'})
    before = sorted(tmp_path.iterdir())
    capsys.readouterr()
    assert run(*(str(tasks.DATA / "llama") if word == "LLAMA" else word for word in arguments)) == 2
    error = capsys.readouterr().err
    assert said in " ".join(error.split()), error
    assert sorted(tmp_path.iterdir()) == before
