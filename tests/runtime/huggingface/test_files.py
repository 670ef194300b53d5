"""Weights go in and out unchanged, and a rank reads the bytes of its part."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.checkpoint.cover import cover_problem
from runtime.checkpoint.full_model import import_model
from runtime.checkpoint.tensor_file import DTYPE_NAMES
from runtime.huggingface import exporting, importing
from runtime.huggingface.companions import keep_companions
from runtime.huggingface.exporting import export_huggingface
from runtime.huggingface.families import layout, parameters
from runtime.huggingface.importing import import_huggingface
from runtime.huggingface.source import Source
from runtime.huggingface.weights import initial_weights
from runtime.weights.shards import ParameterSpec, Shard
from tests.runtime.huggingface import tasks
from tests.tiers import full
from twin.description.huggingface import read_config, read_model
from twin.strategies.four_d.grid import Grid, factorizations

MORE = [family for family in tasks.FAMILIES if family not in ("llama", "qwen3", "gpt2", "gpt_neox")]
"""Families whose files are laid out as another's are."""
GRIDS = [grid for ranks in (1, 2, 4, 8) for grid in factorizations(ranks)]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found |= load_file(path)
    return found


def copy(family: str, folder: Path) -> Path:
    return Path(shutil.copytree(tasks.DATA / family, folder / family))


@pytest.fixture
def imported(tmp_path):
    def do(family: str) -> Path:
        out = tmp_path / "imported"
        import_huggingface(tasks.DATA / family, out)
        return out

    return do


@pytest.mark.parametrize("family", full(tasks.FAMILIES, *MORE))
def test_out_comes_what_went_in(imported, tmp_path, family, monkeypatch):
    """To the last byte and with its dtype, though both read a few rows at a time."""
    monkeypatch.setattr(importing, "MAX_CHUNK", 50)
    monkeypatch.setattr(exporting, "MAX_CHUNK", 70)
    run = imported(family)
    done = export_huggingface(run, tmp_path / "out", shard_bytes=9000)
    before, after = tensors(tasks.DATA / family), tensors(tmp_path / "out")
    assert before.keys() == after.keys()
    for key, values in before.items():
        assert values.dtype == after[key].dtype
        assert values.view(torch.uint8).equal(after[key].view(torch.uint8)), key
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("model-*")]
    assert len(sizes) == done.files > 1
    assert read_model(tmp_path / "out") == read_model(tasks.DATA / family).model_copy(update={"name": "out"})


@pytest.mark.parametrize("family", full(tasks.FAMILIES, *MORE))
def test_the_imported_file_fills_a_model_as_the_directory_does(imported, family):
    run = imported(family)
    through, direct = tasks.build(f"hf:{run / 'huggingface'}"), tasks.build(f"hf:{run / 'huggingface'}")
    import_model(run / "model.safetensors", through.context)
    initial_weights(f"hf:{tasks.DATA / family}", direct.context)
    assert through.context.store.master.equal(direct.context.store.master)


def test_the_index_is_as_transformers_writes_it(imported, tmp_path):
    export_huggingface(imported("llama"), tmp_path / "out", shard_bytes=6144)
    made, own = (
        json.loads((folder / "model.safetensors.index.json").read_text())
        for folder in (tasks.DATA / "llama", tmp_path / "out")
    )
    assert made["metadata"] == own["metadata"]
    assert made["weight_map"].keys() == own["weight_map"].keys()


def test_of_one_file_and_an_index_that_was_left_over_the_file_counts(tmp_path):
    """As Hugging Face's loaders have it; weights of before were read without a word."""
    folder = tmp_path / "llama"
    shutil.copytree(tasks.DATA / "llama", folder)
    assert (folder / "model.safetensors.index.json").exists()
    save_file(
        {key: torch.full_like(values, 7) for key, values in tensors(folder).items()}, folder / "model.safetensors"
    )
    with Source(folder, read_model(folder)) as source:
        assert (source.read("final_norm.weight", (0,), (4,)) == 7).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_another_dtype_on_the_way_out(imported, tmp_path, dtype):
    export_huggingface(imported("gpt2"), tmp_path / "out", dtype=dtype)
    kinds = {DTYPE_NAMES[values.dtype] for values in tensors(tmp_path / "out").values()}
    assert kinds == {exporting.SHORT[dtype]}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] in {
        "bfloat16",
        "float16",
        "float32",
    }


@pytest.mark.parametrize("family", full(tasks.FAMILIES, *MORE))
def test_maps_cover_both_sides(family):
    """Every element of a parameter comes from one place; every element of a file is used, tied ones twice."""
    model = read_model(tasks.DATA / family)
    specs = {p.spec.name: p.spec.shape for p in tasks.build(f"hf:{tasks.DATA / family}").context.store.in_order()}
    assert parameters(model) == specs
    arranged = layout(model, read_config(tasks.DATA / family)["model_type"])
    assert arranged.theirs == {key: tuple(values.shape) for key, values in tensors(tasks.DATA / family).items()}
    for name, shape in specs.items():
        bands = [((b.our_row,), (b.rows,)) for b in arranged.bands if b.ours == name]
        assert cover_problem(shape[:1], bands) is None
    for key in arranged.theirs:
        bands = [b for b in arranged.bands if b.theirs == key and b.ours != "embedding.tokens"]
        axis = -1 if bands and bands[0].transposed else 0
        found = [((b.their_row,), (b.rows,)) for b in bands]
        assert not found or cover_problem(arranged.theirs[key][axis:][:1], found) is None


def shards_of(specs: list[ParameterSpec], grid: Grid, rank: int) -> list[Shard]:
    return [Shard(spec, grid, grid.coordinates(rank)) for spec in specs]


@pytest.mark.parametrize("family", full(tasks.FAMILIES, *(set(tasks.FAMILIES) - {"llama"})))
def test_ranks_read_their_parts_and_no_more(family):
    """On every grid of up to eight ranks that the heads allow; what they read is what lies in the files."""
    directory = tasks.DATA / family
    model = read_model(directory)
    specs = [p.spec for p in tasks.build(f"hf:{directory}").context.store.in_order()]
    with Source(directory, model) as whole:
        full = {s.name: whole.read(s.name, (0,) * len(s.shape), s.shape) for s in specs}
        item = next(iter(full.values())).element_size()
    for grid in GRIDS:
        if model.key_value_heads % grid.y or model.mlp_hidden % grid.y or model.hidden % grid.x:
            continue
        for rank in range(grid.ranks):
            with Source(directory, model) as source:
                share = 0
                for shard in shards_of(specs, grid, rank):
                    for r in shard.rectangles():
                        place = tuple(slice(o, o + n) for o, n in zip(r.offsets, r.sizes, strict=True))
                        assert source.read(shard.spec.name, r.offsets, r.sizes).equal(full[shard.spec.name][place])
                        share += prod(r.sizes) * item
                assert source.bytes_read == share


def test_a_directory_of_a_hub(tmp_path):
    """Without prefix, with masks and buffers, as links into a store; a head beside the table that it is tied to."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    blobs = copy("gpt2", tmp_path)
    weights = {key.removeprefix("transformer."): values for key, values in tensors(blobs).items()}
    weights["h.0.attn.bias"] = torch.ones(1, 1, 12, 12)
    weights["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    weights["lm_head.weight"] = weights["wte.weight"].clone()
    save_file(weights, blobs / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(blobs / name)
    model = tasks.build(f"hf:{folder}")
    initial_weights(f"hf:{folder}", model.context)
    assert tasks.error_of(model, blobs / "answer.safetensors") < tasks.TOLERANCE


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("gpt_neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias"),
        ("gpt_neox", "gpt_neox.layers.1.attention.masked_bias"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ],
)
def test_buffers_of_older_releases_are_left_out(tmp_path, family, extra):
    folder = copy(family, tmp_path)
    weights = tensors(folder)
    for path in folder.glob("model*"):
        path.unlink()
    save_file({**weights, extra: torch.ones(2)}, folder / "model.safetensors")
    read = import_huggingface(folder, tmp_path / "imported")
    assert read.parameters == read_model(folder).parameters


def test_neox_by_the_name_that_its_head_has_in_memory(tmp_path):
    folder = copy("gpt_neox", tmp_path)
    weights = tensors(folder)
    weights["lm_head.weight"] = weights.pop("embed_out.weight")
    save_file(weights, folder / "model.safetensors")
    import_huggingface(folder / "model.safetensors", tmp_path / "imported")
    export_huggingface(tmp_path / "imported", tmp_path / "out")
    assert tensors(tmp_path / "out")["embed_out.weight"].equal(weights["lm_head.weight"])


def test_the_tokenizer_goes_along(tmp_path):
    folder = copy("llama", tmp_path)
    kept = ["chat_template.jinja", "generation_config.json", "tokenizer.json"]
    for name in (*kept, "README.md"):
        (folder / name).write_text(f"{{}} of {name}")
    import_huggingface(folder, tmp_path / "imported", ["model.sequence=8", "name=mine", "train.steps=3"])
    job = (tmp_path / "imported" / "job.yaml").read_text()
    assert "preset: hf:huggingface" in job
    assert "steps: 3" in job
    done = export_huggingface(tmp_path / "imported", tmp_path / "out")
    assert sorted(done.companions) == kept
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{} of tokenizer.json"
    assert not (tmp_path / "out" / "README.md").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"] == 12


def test_a_tied_head_is_written_from_what_is_trained(tmp_path, imported):
    """In bf16 the table may be a rounded copy of it."""
    run = imported("qwen2")
    weights = load_file(run / "model.safetensors")
    said = {"model": read_model(tasks.DATA / "qwen2").model_dump_json()}
    save_file(weights | {"head.weight": weights["head.weight"] + 1}, tmp_path / "full.safetensors", said)
    export_huggingface(tmp_path / "full.safetensors", tmp_path / "out")
    out = tensors(tmp_path / "out")
    assert "lm_head.weight" not in out
    np.testing.assert_array_equal(out["model.embed_tokens.weight"].numpy(), weights["head.weight"].numpy() + 1)


def test_a_run_keeps_what_goes_with_its_weights(tmp_path, imported):
    """From the directory, or from what stands beside the imported file; one that cannot be copied is said."""
    for index, weights in enumerate((f"hf:{tasks.DATA / 'llama'}", str(imported("llama") / "model.safetensors"))):
        run = tmp_path / f"run{index}"
        run.mkdir()
        assert keep_companions(weights, run) is None
        assert read_model(run / "huggingface").layers == 2
    assert keep_companions(str(tmp_path / "other.safetensors"), tmp_path) is None
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "huggingface").write_text("")
    assert "are not kept with the run" in str(keep_companions(f"hf:{tasks.DATA / 'llama'}", tmp_path / "taken"))
