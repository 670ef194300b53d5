"""The `config.json` of a model, in the keys of both generations of Hugging Face transformers.

Readers of transformers up to 4 find `torch_dtype`, `rope_theta`, `rope_scaling`; those of 5 and later `dtype` and
`rope_parameters`. The way in is in `huggingface`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twin.description.huggingface import FAMILIES, LLAMA_LIKE, SLIDING
from twin.description.model import Model
from twin.description.problems import DescriptionError, Problem, did_you_mean

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
}
_LLAMA: dict[str, tuple[Any, ...]] = {
    "norm": ("rms",),
    "activation": ("swiglu",),
    "positions": ("rotary",),
    "residual": ("serial",),
    "rotary_share": (1.0,),
    "qk_norm": (False,),
    "biases": (False,),
}
_GPT: dict[str, tuple[Any, ...]] = {
    "norm": ("layer",),
    "activation": ("gelu", "gelu_exact"),
    "biases": (True,),
    "qk_norm": (False,),
    "head_width": (None,),
}
ABLE: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {**_LLAMA, "biases": (False, True)},
    "mistral": _LLAMA,
    "qwen2": {**_LLAMA, "biases": ("qkv",)},
    "qwen3": {**_LLAMA, "qk_norm": (True,)},
    "gpt2": {**_GPT, "positions": ("learned",), "residual": ("serial",)},
    "gpt_neox": {**_GPT, "positions": ("rotary",)},
}
"""What a family can be, key by key; what is not named it leaves free."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
"""Names there of the dtypes of safetensors."""


def obstacles(model: Model, family: str) -> list[Problem]:
    """Return what keeps a model from being one of a family."""
    found = [
        Problem(f"model.{key}", f"{family} has {' or '.join(map(str, able))}", getattr(model, key))
        for key, able in ABLE[family].items()
        if getattr(model, key) not in able
    ]
    if family not in LLAMA_LIKE and model.key_value_heads != model.heads:
        found.append(Problem("model.kv_heads", f"{family} has as many as heads of queries", model.kv_heads))
    return found


def family_of(model: Model, wanted: str | None = None) -> str:
    """Return the family that a model is written as: the wanted one, or the first that can be it.

    Raises DescriptionError with what keeps it from being one.
    """
    if wanted is not None and wanted not in FAMILIES:
        raise DescriptionError([Problem("family", did_you_mean(wanted, FAMILIES), wanted)])
    among = FAMILIES if wanted is None else (wanted,)
    tried = {family: obstacles(model, family) for family in among}
    for family, problems in tried.items():
        if not problems:
            return family
    nearest = min(tried, key=lambda family: len(tried[family]))
    remedy = f"no family of Hugging Face's is this model; nearest is {nearest}"
    raise DescriptionError([*tried[nearest], Problem("", remedy)])


def config_of(
    model: Model, dtype: str, family: str | None = None, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the keys of the `config.json` of a model whose weights have a dtype such as BF16.

    `base`: the file that the model once came with; what it says besides stays, such as the ids of special tokens.
    Raises DescriptionError if the model is of no family there.
    """
    base = dict(base or {})
    origin = base.get("model_type")
    if family is None and isinstance(origin, str) and origin in FAMILIES and not obstacles(model, origin):
        family = origin
    family = family_of(model, family)
    if origin != family:
        base = {key: base[key] for key in base if key.endswith("_token_id")}
    kinds = base.get("layer_types")
    if isinstance(kinds, list) and (len(kinds) != model.layers or (model.window is None and SLIDING in kinds)):
        del base["layer_types"]
    own = _gpt2(model) if family == "gpt2" else _gpt_neox(model) if family == "gpt_neox" else _llama_like(model, family)
    common = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": model.vocabulary,
        "tie_word_embeddings": model.tied_embeddings,
        "dtype": DTYPES[dtype],
        "torch_dtype": DTYPES[dtype],
    }
    if "max_window_layers" in base:
        own.pop("max_window_layers", None)
    return base | common | own


def _longest(model: Model) -> int:
    return model.sequence if model.max_positions is None else model.max_positions


def _rotary(model: Model, **partial: float) -> dict[str, Any]:
    """Return the keys of rotary positions in both forms."""
    scaling = model.rotary_scaling
    kind: dict[str, Any] = {"rope_type": "default" if scaling is None else scaling.kind}
    if scaling is not None:
        kind["factor"] = scaling.factor
    if scaling is not None and scaling.kind == "llama3":
        kind |= {
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_sequence,
        }
    return {
        "rope_theta": model.rotary_base,
        "rope_scaling": None if scaling is None else kind,
        "rope_parameters": {**kind, **partial, "rope_theta": model.rotary_base},
    }


def _llama_like(model: Model, family: str) -> dict[str, Any]:
    keys = {
        "hidden_size": model.hidden,
        "intermediate_size": model.mlp_hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": _longest(model),
        "rms_norm_eps": model.norm_epsilon,
        **_rotary(model),
    }
    if family == "llama":
        return keys | {"attention_bias": model.biases, "mlp_bias": model.biases}
    if family == "mistral":
        return keys | {"sliding_window": model.window}
    bias = {"attention_bias": False} if family == "qwen3" else {}
    slides = model.window is not None
    # which layers slide the file that it came with says; of others all of those from `max_window_layers` on
    every = {"max_window_layers": 0} if slides else {}
    return every | keys | bias | {"use_sliding_window": slides, "sliding_window": model.window}


def _gpt2(model: Model) -> dict[str, Any]:
    return {
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_positions": _longest(model),
        "n_inner": None if model.mlp_hidden == 4 * model.hidden else model.mlp_hidden,
        "activation_function": "gelu_new" if model.activation == "gelu" else "gelu",
        "layer_norm_epsilon": model.norm_epsilon,
    }


def _gpt_neox(model: Model) -> dict[str, Any]:
    share = model.rotary_share
    return {
        "hidden_size": model.hidden,
        "intermediate_size": model.mlp_hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "hidden_act": "gelu_new" if model.activation == "gelu" else "gelu",
        "max_position_embeddings": _longest(model),
        "layer_norm_eps": model.norm_epsilon,
        "attention_bias": True,
        "use_parallel_residual": model.residual == "parallel",
        **_rotary(model, partial_rotary_factor=share),
        "rotary_pct": share,
        "partial_rotary_factor": share,
        "rotary_emb_base": model.rotary_base,
    }
