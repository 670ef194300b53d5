"""A model by the `config.json` of a Hugging Face directory: `model: hf:DIR` in a job.

Read as JSON, without that library. Both generations of the file are known: up to transformers 4 rotary positions are
described by `rope_theta` and `rope_scaling`, from 5 on by `rope_parameters`. What a family can do and Fourfold
cannot is refused by its key; nothing is left out in silence. The way back is in `huggingface_config`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from twin.description.model import Model, RotaryScaling
from twin.description.problems import DescriptionError, Problem, did_you_mean, from_pydantic

PREFIX = "hf:"
CONFIG = "config.json"
MAX_CONFIG_BYTES = 1 << 20
SLIDING = "sliding_attention"
"""A kind of layer of `layer_types`."""
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = (*LLAMA_LIKE, "gpt2", "gpt_neox")
"""Values of `model_type` that are known."""
GELU = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu": "gelu_exact"}
"""By its name there: the first three are one formula, by tanh."""
SILU = {"silu": "swiglu", "swish": "swiglu"}
ROTARY_KEYS = {
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "partial_rotary_factor"),
}
QWEN3_HEAD = 128
"""Head size of Qwen3 where its file does not say."""


def is_directory_of(value: Any) -> bool:
    """Tell whether a value of a job names a Hugging Face directory."""
    return isinstance(value, str) and value.startswith(PREFIX)


def located(value: str, folder: Path) -> Path:
    """Return the directory that `hf:DIR` names: from `folder`, or from here if there is none such."""
    name = value.removeprefix(PREFIX)
    there = folder / name
    try:
        return there if there.exists() else Path(name)
    except OSError:  # a name too long for the file system
        return Path(name)


def absolute(value: str, folder: Path) -> str:
    """Return `hf:DIR` with a path that leads there from anywhere."""
    return f"{PREFIX}{located(value, folder).resolve()}"


def read_config(directory: Path) -> dict[str, Any]:
    """Read the `config.json` of a directory; raises DescriptionError with what is wrong."""
    path = directory / CONFIG
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise DescriptionError([Problem("", "is too large for a model's description")], str(path))
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = f"{error.strerror}; give a directory that holds a model's {CONFIG} and safetensors files"
        raise DescriptionError([Problem("", f"cannot be read: {remedy}")], str(path)) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, DescriptionError):
            raise
        raise DescriptionError([Problem("", f"is not JSON: {error}")], str(path)) from None
    if not isinstance(raw, dict):
        raise DescriptionError([Problem("", "is not a mapping")], str(path))
    return raw


def read_model(directory: Path, sequence: int | None = None) -> Model:
    """Return the model that a directory's `config.json` describes.

    `sequence`: tokens of a training sequence; without it the longest that the model was made for. Raises
    DescriptionError with every key that is missing, not understood, or of something unknown here.
    """
    name = directory.name or directory.resolve().name
    return model_of(read_config(directory), name, sequence, str(directory / CONFIG))


def model_of(raw: Mapping[str, Any], name: str, sequence: int | None = None, origin: str = CONFIG) -> Model:
    """Return the model that the keys of a `config.json` describe; as `read_model`."""
    config = Config(raw)
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = f"is not a family known here; {did_you_mean(str(family), FAMILIES)}"
        known += "" if "choose from" in known else f" (known: {', '.join(FAMILIES)})"
        raise DescriptionError([Problem("model_type", known, family)], origin)
    _refuse_unknown(config)
    shape = _READERS[family](config)
    longest = shape.pop("longest")
    if isinstance(longest, int) and sequence is not None and (sequence < longest or shape["positions"] == "learned"):
        shape["max_positions"] = longest if longest != sequence else None
    if config.problems:
        raise DescriptionError(config.problems, origin)
    try:
        return Model(name=name, sequence=longest if sequence is None else sequence, **shape)
    except ValidationError as error:
        raise DescriptionError(from_pydantic(error, Model), origin) from None


class Config:
    """The keys of a file, and what is wrong with them."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.problems: list[Problem] = []

    def refuse(self, key: str, message: str, value: Any = None) -> None:
        """Note a problem."""
        self.problems.append(Problem(key, message, value))

    def number(self, *keys: str, default: float | None = None) -> Any:
        """Return the number under the first of these keys that is there; without default one must be."""
        for key in keys:
            value = self.raw.get(key)
            if value is None:
                continue
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
            self.refuse(key, "is no number", value)
            return 1
        if default is None:
            self.refuse(keys[0], "is missing")
            return 1
        return default

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "is neither true nor false", value)
        return bool(value)

    def choice(self, key: str, known: Mapping[str, str], default: str) -> str:
        """Return what a word stands for here."""
        value = self.raw.get(key, default)
        if not isinstance(value, str) or value not in known:
            self.refuse(key, f"is not known in this family; {', '.join(known)} are", value)
            return known[default]
        return known[value]

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return a mapping; an empty one where there is none."""
        value = self.raw.get(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(key, "is no mapping", value)
        return value if isinstance(value, dict) else {}


def _refuse_unknown(config: Config) -> None:
    """Refuse what changes the mathematics in a way that no part of Fourfold follows."""
    raw = config.raw
    packed = raw.get("quantization_config")
    # transformers reads GGUF into plain numbers, and leaves this behind when it saves them
    if packed is not None and not (isinstance(packed, dict) and packed.get("quant_method") == "gguf"):
        remedy = "weights are quantized; give the model in fp32, bf16 or fp16; if its files are, delete this key"
        config.refuse("quantization_config", remedy)
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if raw.get(key):
            config.refuse(key, "experts are not known here; dense models are", raw[key])
    reasons = {
        "scale_attn_by_inverse_layer_idx": "scores are divided by the number of the layer, which is not known here",
        "reorder_and_upcast_attn": "attention in fp32 apart from the rest is not known here",
        "add_cross_attention": "attention to an encoder is not known here",
        "is_encoder_decoder": "encoders are not known here",
    }
    for key, reason in reasons.items():
        if config.flag(key, default=False):
            config.refuse(key, reason, True)
    if not config.flag("scale_attn_weights", default=True):
        config.refuse("scale_attn_weights", "scores that are not divided by √(head size) are not known here", False)
    kinds = raw.get("layer_types")
    strange = {str(k) for k in kinds} - {"full_attention", SLIDING} if isinstance(kinds, list) else set()
    if strange:
        config.refuse("layer_types", f"has {', '.join(sorted(strange))}; full attention is known here")


def _llama_like(config: Config, **own: Any) -> dict[str, Any]:
    heads, hidden = config.number("num_attention_heads"), config.number("hidden_size")
    head = config.number("head_dim", default=own.pop("head", 0) or hidden // max(heads, 1))
    base, scaling, share = _rotary(config)
    if share not in (None, 1.0):
        config.refuse("partial_rotary_factor", "this family turns whole heads", share)
    return {
        "layers": config.number("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.number("num_key_value_heads", default=heads),
        "head_width": None if head * heads == hidden else head,
        "longest": config.number("max_position_embeddings"),
        "vocabulary": config.number("vocab_size"),
        "mlp_width": config.number("intermediate_size"),
        "activation": config.choice("hidden_act", SILU, "silu"),
        "norm": "rms",
        "norm_epsilon": config.number("rms_norm_eps", default=1e-6),
        "positions": "rotary",
        "rotary_base": base,
        "rotary_scaling": scaling,
        "biases": False,
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        **own,
    }


def _llama(config: Config) -> dict[str, Any]:
    attention, mlp = config.flag("attention_bias", default=False), config.flag("mlp_bias", default=False)
    if attention != mlp:
        config.refuse("attention_bias", f"is {attention} and mlp_bias {mlp}: known are both or none")
    return _llama_like(config, biases=attention)


def _mistral(config: Config) -> dict[str, Any]:
    return _llama_like(config, window=config.number("sliding_window", default=0) or None)


def _qwen2(config: Config) -> dict[str, Any]:
    return _llama_like(config, biases="qkv", window=_window(config))


def _qwen3(config: Config) -> dict[str, Any]:
    if config.flag("attention_bias", default=False):
        config.refuse("attention_bias", "biases in this family are not known here", True)
    return _llama_like(config, qk_norm=True, window=_window(config), head=QWEN3_HEAD)


def _window(config: Config) -> int | None:
    """Return the window of those Qwen models that use it."""
    kinds = config.raw.get("layer_types")
    used = config.flag("use_sliding_window", default=False)
    if isinstance(kinds, list):
        used = SLIDING in kinds
    return config.number("sliding_window", default=0) or None if used else None


def _gpt2(config: Config) -> dict[str, Any]:
    hidden, heads = config.number("n_embd", "hidden_size"), config.number("n_head", "num_attention_heads")
    return {
        "layers": config.number("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "longest": config.number("n_positions", "max_position_embeddings"),
        "vocabulary": config.number("vocab_size"),
        "mlp_width": _width(config.number("n_inner", default=4 * hidden), hidden),
        "activation": config.choice("activation_function", GELU, "gelu_new"),
        "norm_epsilon": config.number("layer_norm_epsilon", default=1e-5),
        "positions": "learned",
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
    }


def _gpt_neox(config: Config) -> dict[str, Any]:
    hidden = config.number("hidden_size")
    base, scaling, share = _rotary(config, "rotary_emb_base")
    if share is None:
        share = config.number("rotary_pct", "partial_rotary_factor", default=0.25)
    if not config.flag("attention_bias", default=True):
        config.refuse("attention_bias", "attention without biases is not known in this family", False)
    return {
        "layers": config.number("num_hidden_layers"),
        "hidden": hidden,
        "heads": config.number("num_attention_heads"),
        "longest": config.number("max_position_embeddings"),
        "vocabulary": config.number("vocab_size"),
        "mlp_width": _width(config.number("intermediate_size"), hidden),
        "activation": config.choice("hidden_act", GELU, "gelu"),
        "norm_epsilon": config.number("layer_norm_eps", default=1e-5),
        "positions": "rotary",
        "rotary_base": base,
        "rotary_scaling": scaling,
        "rotary_share": share,
        "residual": "parallel" if config.flag("use_parallel_residual", default=True) else "serial",
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
    }


def _width(width: Any, hidden: Any) -> Any:
    """Return a width of the MLP if it is not the usual one."""
    return None if width == 4 * hidden else width


def _rotary(config: Config, *older: str) -> tuple[float, RotaryScaling | None, float | None]:
    """Return base, scaling and share of rotary positions, if it is told; the newer form counts where both are there."""
    found = {**config.mapping("rope_scaling"), **config.mapping("rope_parameters")}
    given = Config(found)
    if strange := sorted(str(key) for key, value in found.items() if key not in ROTARY_KEYS and value is not None):
        given.refuse(strange[0], "is not known here; one rule for all layers is")
    base = given.number("rope_theta", default=0) or config.number("rope_theta", *older, default=10_000.0)
    told = found.get("partial_rotary_factor") is not None
    share = given.number("partial_rotary_factor") if told else None
    kind, scaling = found.get("rope_type", found.get("type", "default")), None
    if kind == "linear":
        scaling = {"kind": "linear", "factor": given.number("factor")}
    elif kind == "llama3":
        scaling = {
            "kind": "llama3",
            "factor": given.number("factor"),
            "low_frequency_factor": given.number("low_freq_factor"),
            "high_frequency_factor": given.number("high_freq_factor"),
            "original_sequence": given.number("original_max_position_embeddings"),
        }
    elif kind != "default":
        given.refuse("rope_type", "is not known here; default, linear and llama3 are", kind)
    config.problems += [Problem(f"rope_parameters.{p.path}", p.message, p.value) for p in given.problems]
    if scaling is None or given.problems:
        return base, None, share
    try:
        return base, RotaryScaling.model_validate(scaling), share
    except ValidationError as error:
        config.problems += from_pydantic(error, RotaryScaling, "rope_parameters")
        return base, None, share


_READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
