"""Make the small random models of `data/` and what Hugging Face transformers says they answer.

    python tests/runtime/huggingface/make_models.py            # with transformers 5: everything
    python tests/runtime/huggingface/make_models.py --configs  # with transformers 4: config-4.json of each

No test needs transformers; `data/README.md` says which releases made what lies there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

DATA = Path(__file__).parent / "data"
COMMON = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **GROUPED},
    "llama-scaled": {
        "model_type": "llama",
        **GROUPED,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "theta": 500.0,
        "scaling": LLAMA3,
    },
    "llama-biased": {
        "model_type": "llama",
        **GROUPED,
        "attention_bias": True,
        "mlp_bias": True,
        "scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "mistral": {"model_type": "mistral", **GROUPED, "sliding_window": 12, "theta": 1e6},
    "qwen2": {"model_type": "qwen2", **GROUPED, "tie_word_embeddings": True, "theta": 1e6},
    "qwen3": {"model_type": "qwen3", **GROUPED, "head_dim": 8, "theta": 1e6},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 37,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 12,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": {"model_type": "gpt_neox", **COMMON, "num_attention_heads": 2, "intermediate_size": 64},
    "gpt_neox-serial": {
        "model_type": "gpt_neox",
        **COMMON,
        "num_attention_heads": 4,
        "use_parallel_residual": False,
        "hidden_act": "gelu_fast",
        "partial": 0.5,
    },
}
DTYPES = {"mistral": torch.bfloat16, "qwen3": torch.float16}
"""Of what is saved; what it answers is computed in fp32 from that."""
SHARD = {"llama": "6KB"}
"""Saved in several files."""
SEQUENCES = 4


def config_of(shape: dict[str, Any]) -> Any:
    """Make a config with the release's own keys for rotary positions."""
    shape = dict(shape)
    theta, scaling = shape.pop("theta", 10_000.0), shape.pop("scaling", None)
    kind, share = scaling or {"rope_type": "default"}, shape.pop("partial", 0.25)
    if shape["model_type"] != "gpt2":
        if transformers.__version__.startswith("4."):
            shape |= {"rope_theta": theta, "rope_scaling": scaling}
            shape |= {"rotary_pct": share} if shape["model_type"] == "gpt_neox" else {}
        else:
            partial = {"partial_rotary_factor": share} if shape["model_type"] == "gpt_neox" else {}
            shape["rope_parameters"] = {**kind, "rope_theta": theta, **partial}
    return AutoConfig.for_model(**shape)


def make(name: str) -> None:
    """Write one model and its answer."""
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(config_of(MODELS[name]), attn_implementation="eager").eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or ".ln_" in key:
                parameter.copy_((1.0 if key.endswith("weight") else 0.0) + 0.2 * torch.randn(parameter.shape))
            else:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    model = model.to(DTYPES.get(name, torch.float32))
    folder = DATA / name
    model.save_pretrained(folder, max_shard_size=SHARD.get(name, "5GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokens = torch.randint(0, 37, (SEQUENCES, 12))
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = again(tokens).logits
    save_file({"tokens": tokens, "logits": logits.contiguous()}, folder / "answer.safetensors")


if __name__ == "__main__":
    for each, shape in MODELS.items():
        if "--configs" in sys.argv:
            (DATA / each / "config-4.json").write_text(config_of(shape).to_json_string(use_diff=True))
        else:
            make(each)
