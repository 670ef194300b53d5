"""Shapes of models from and to `config.json`, of both generations, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from twin.description.huggingface import FAMILIES, model_of, read_model
from twin.description.huggingface_config import config_of, family_of
from twin.description.model import Model
from twin.description.presets import presets
from twin.description.problems import DescriptionError
from twin.search.best import Given, job_mapping
from twin.strategies import load_job

DATA = Path(__file__).parents[1] / "runtime" / "huggingface" / "data"
NAMES = sorted(path.name for path in DATA.iterdir() if path.is_dir())
NEW, OLD = {"rope_theta", "rope_scaling", "rotary_emb_base", "rotary_pct", "partial_rotary_factor"}, {"rope_parameters"}
JOB = {"machine": "laptop", "ranks": 1, "grid": "auto", "batch": {"sequences": 8}}


def config(name: str) -> dict[str, Any]:
    return json.loads((DATA / name / "config.json").read_text())


def same(one: Model, other: Model) -> bool:
    """Whether two descriptions are of one model, however it is written down."""
    return plain(one) == plain(other)


def plain(model: Model) -> dict[str, Any]:
    derived = {"kv_heads": model.key_value_heads, "head_width": model.head_size, "mlp_width": model.mlp_hidden}
    return model.model_dump(exclude={"name", "mlp_ratio"}) | derived


@pytest.mark.parametrize("name", NAMES)
def test_both_generations_say_the_same(name):
    older = model_of(json.loads((DATA / name / "config-4.json").read_text()), name)
    assert read_model(DATA / name) == older


@pytest.mark.parametrize(
    ("newer", "older", "share"),
    [(1.0, 0.25, 1.0), (1.0, None, 1.0), (0.5, None, 0.5), (None, 1.0, 1.0), (None, None, 0.25)],
)
def test_a_neox_turns_the_share_of_its_heads_that_it_says(newer, older, share):
    """Whole heads too: of 1.0 a quarter was made, as where nothing is said."""
    given = {**config("gpt_neox"), "rotary_pct": older}
    given = {key: value for key, value in given.items() if value is not None}
    given["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": newer}
    assert model_of(given, "m").rotary_share == share


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("without", [set(), NEW, OLD], ids=["both", "transformers 5", "transformers 4"])
def test_presets_go_out_and_come_in(name, without):
    model = presets()[name]
    written = {key: value for key, value in config_of(model, "BF16").items() if key not in without}
    if without == OLD:
        assert written["torch_dtype"] == "bfloat16"
    again = model_of(json.loads(json.dumps(written)), name)
    assert same(again, model)
    assert again.parameters == model.parameters


LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    "smollm2-135m": {
        **LLAMA,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 24,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "pythia-410m": {
        "model_type": "gpt_neox",
        "hidden_act": "gelu",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "max_position_embeddings": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
        "vocab_size": 50304,
    },
}
"""As hubs have them, shortened to the keys that matter."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_what_was_published(name):
    """Apart from the sequence, which presets take from training; and GPT-2's vocabulary, which they pad."""
    known = presets()[name]
    changes: dict[str, Any] = {"max_positions": None}
    changes |= {"vocabulary": 50304, "tied_embeddings": False} if name == "gpt2" else {}
    found = model_of(PUBLISHED[name], name, known.sequence).model_copy(update=changes)
    assert same(found, known)


def test_what_a_sequence_of_ones_own_does():
    """The longest sequence is kept: for the table of positions, and for the file that is written later."""
    assert read_model(DATA / "gpt2").max_positions is None
    shorter = read_model(DATA / "gpt2", 8)
    assert (shorter.sequence, shorter.max_positions, shorter.position_rows) == (8, 12, 12)
    assert config_of(shorter, "F32")["n_positions"] == 12
    rotary = read_model(DATA / "llama", 8)
    assert (rotary.max_positions, rotary.position_rows) == (12, 0)
    assert read_model(DATA / "llama", 16).max_positions is None


def test_a_job_names_a_directory(tmp_path):
    (tmp_path / "model").symlink_to(DATA / "llama")
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({**JOB, "model": "hf:model"}))
    assert load_job(job).model.sequence == 12
    assert load_job(job, ["model.sequence=8"]).model.max_positions == 12
    assert load_job({**JOB, "model": {"preset": f"hf:{DATA / 'llama'}", "sequence": 8}}).model.sequence == 8
    for overrides in ((), ("model.sequence=8",)):  # what a search writes lies elsewhere
        chosen = job_mapping(Given(job, overrides), load_job(job, ["grid={data: 1}", "batch.micro_sequences=1"]))
        assert load_job(chosen).model.sequence == (8 if overrides else 12)


def test_a_window_that_bites_is_refused():
    narrow = {**config("mistral"), "sliding_window": 8}
    assert model_of(narrow, "m").window == 8
    with pytest.raises(DescriptionError, match=r"model.window = 8: .*set sequence to at most 8"):
        load_job({**JOB, "model": model_of(narrow, "m").model_dump()})
    assert load_job({**JOB, "model": model_of(narrow, "m", 8).model_dump()}).model.window == 8
    assert config_of(model_of(narrow, "m", 8), "F32", base=narrow)["sliding_window"] == 8


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "family": ("llama", {"model_type": "mamba"}, "model_type = 'mamba': .*llama.*gpt_neox"),
    "no family": ("llama", {"model_type": None}, "model_type: is not a family known here"),
    "a list": ("llama", {"model_type": ["llama"]}, "is not a family known here"),
    "yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type = 'yarn'"),
    "older yarn": ("llama", {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic'"),
    "by layer": ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "one rule for all layers"),
    "no factor": ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor: is missing"),
    "factor": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "rope_parameters.factor = 0.5"),
    "part of a head": ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "turns whole heads"),
    "quantized": ("llama", {"quantization_config": {"bits": 4}}, "quantization_config: weights are quantized"),
    "experts": ("mistral", {"num_local_experts": 8}, "num_local_experts = 8: experts"),
    "layers": ("qwen3", {"layer_types": ["linear_attention"]}, "layer_types: has linear_attention"),
    "half biases": ("llama", {"attention_bias": True}, "attention_bias: is True and mlp_bias False"),
    "biases": ("qwen3", {"attention_bias": True}, "attention_bias = True"),
    "no biases": ("gpt_neox", {"attention_bias": False}, "attention_bias = False"),
    "activation": (
        "llama",
        {"hidden_act": "relu"},
        "hidden_act = 'relu': is not known in this family; silu, swish are",
    ),
    "by layer's number": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "divided by the number of the layer"),
    "upcast": ("gpt2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
    "unscaled": ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
    "an encoder": ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    "missing": ("llama", {"hidden_size": None}, "hidden_size: is missing"),
    "no number": ("llama", {"num_hidden_layers": "2"}, "num_hidden_layers = '2': is no number"),
    "negative": ("llama", {"num_hidden_layers": -2}, "layers = -2"),
    "half a layer": ("gpt2", {"n_layer": 2.5}, "layers = 2.5"),
    "nothing": ("llama", {"num_attention_heads": 0}, "heads = 0"),
    "not a number": ("gpt2", {"n_embd": float("nan")}, "hidden"),
    "infinite": ("gpt_neox", {"hidden_size": float("inf")}, "hidden"),
    "no flag": ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes': is neither true nor false"),
    "no mapping": ("llama", {"rope_parameters": [1]}, "rope_parameters = .*is no mapping"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_its_key(case):
    name, changes, said = REFUSED[case]
    with pytest.raises(DescriptionError, match=said):
        model_of(config(name) | changes, name)


def test_all_problems_are_said_at_once():
    wrong = {**config("llama"), "quantization_config": {}, "hidden_act": "relu", "vocab_size": None}
    with pytest.raises(DescriptionError, match="3 problems"):
        model_of(wrong, "wrong")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory; give a directory that holds a model's config.json"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a mapping"),
        ("\ud800", "is not JSON"),
        (" " * (1 << 20) + "{}", "too large"),
    ],
)
def test_a_file_that_is_none(tmp_path, text, said):
    if text is not None:
        (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DescriptionError) as error:
        load_job({**JOB, "model": f"hf:{tmp_path}"})
    assert said in str(error.value)
    assert str(tmp_path / "config.json") in str(error.value)


def test_a_model_of_no_family_is_not_written():
    model = Model(layers=1, hidden=8, heads=2, sequence=4, vocabulary=5, biases=False)
    with pytest.raises(DescriptionError, match=r"model.biases = False: gpt2 has True\n.*nearest is gpt2"):
        config_of(model, "F32")
    with pytest.raises(DescriptionError, match="did you mean 'llama'"):
        config_of(model, "F32", "lama")


def test_the_family_that_it_came_from_stays():
    """Mistral's shape is Llama's; what its file says besides stays too."""
    model = read_model(DATA / "mistral")
    assert family_of(model) == "llama"
    base = {**config("mistral"), "pad_token_id": 7, "layer_types": ["full_attention"] * 9}
    written = config_of(model, "F32", base=base)
    assert (written["model_type"], written["pad_token_id"], "layer_types" in written) == ("mistral", 7, False)
    other = config_of(model, "F32", "llama", base)
    assert (other["model_type"], other["pad_token_id"], "sliding_window" in other) == ("llama", 7, False)


def test_every_family_has_a_model_here():
    assert {config(name)["model_type"] for name in NAMES} == set(FAMILIES)
