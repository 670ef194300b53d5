"""Models that the field knows by name.

* `gpt-5b` … `gpt-640b` are Table II of arXiv 2502.08145; sequence length 2048 and the padded
  GPT-2 vocabulary of 50,304 come from the authors' launch scripts
  (github axonn-ai/Megatron-AxoNN, branch gordon-bell-perlmutter).
* `gpt2` … `gpt2-xl` have the shapes of Radford et al. 2019, with a head of their own and the padded vocabulary, as
  Megatron trains them; the published weights (`import` of `openai-community/gpt2`) share table and head.
* Llama (arXiv 2307.09288, 2407.21783), Mistral (arXiv 2310.06825; release 0.3), Qwen (arXiv 2412.15115, 2505.09388),
  SmolLM2 (arXiv 2502.02737), Pythia (arXiv 2304.01373) and GPT-NeoX (arXiv 2204.06745) have the shapes of the published
  `config.json`, and the sequence of most of their training.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from twin.description.model import Model, RotaryScaling


def presets() -> dict[str, Model]:
    """Return the models known by name."""
    return {model.name: model for model in _models()}


@cache
def _models() -> tuple[Model, ...]:
    """Make them once: they are frozen."""
    return (*_gpts(), *_llamas(), *_mistrals(), *_qwens(), *_smollms(), *_pythias())


def _gpts() -> list[Model]:
    def gpt(name: str, layers: int, hidden: int, heads: int, sequence: int = 2048, vocabulary: int = 50304) -> Model:
        return Model(name=name, layers=layers, hidden=hidden, heads=heads, sequence=sequence, vocabulary=vocabulary)

    return [
        gpt("gpt2", 12, 768, 12, 1024),
        gpt("gpt2-medium", 24, 1024, 16, 1024),
        gpt("gpt2-large", 36, 1280, 20, 1024),
        gpt("gpt2-xl", 48, 1600, 25, 1024),
        gpt("gpt-5b", 24, 4096, 32),
        gpt("gpt-10b", 32, 5120, 40),
        gpt("gpt-20b", 32, 7168, 56),
        gpt("gpt-40b", 38, 9216, 72),
        gpt("gpt-60b", 56, 9216, 72),
        gpt("gpt-80b", 42, 12288, 96),
        gpt("gpt-160b", 84, 12288, 96),
        gpt("gpt-320b", 96, 16384, 128),
        gpt("gpt-640b", 192, 16384, 128),
    ]


def _llama(name: str, layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, **others: Any) -> Model:
    """Describe a model of Llama's family: RMS norm, SwiGLU, rotary positions, no biases."""
    return Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=mlp,
        activation="swiglu",
        norm="rms",
        positions="rotary",
        **{"biases": False, **others},
    )


def _llamas() -> list[Model]:
    second: dict[str, Any] = {"vocabulary": 32000, "sequence": 4096}
    third: dict[str, Any] = {"vocabulary": 128256, "sequence": 8192, "rotary_base": 500_000.0}
    longer = {**third, "rotary_scaling": RotaryScaling(kind="llama3", factor=8)}
    small = {**third, "rotary_scaling": RotaryScaling(kind="llama3", factor=32), "tied_embeddings": True}
    return [
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, **second),
        _llama("llama-2-13b", 40, 5120, 40, 40, 13824, **second),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28672, **second),
        _llama("llama-3-8b", 32, 4096, 32, 8, 14336, **third),
        _llama("llama-3-70b", 80, 8192, 64, 8, 28672, **third),
        _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, **longer),
        _llama("llama-3.1-70b", 80, 8192, 64, 8, 28672, **longer),
        _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, **longer),
        _llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, **small),
        _llama("llama-3.2-3b", 28, 3072, 24, 8, 8192, **small),
    ]


def _mistrals() -> list[Model]:
    return [_llama("mistral-7b", 32, 4096, 32, 8, 14336, vocabulary=32768, sequence=8192, rotary_base=1_000_000.0)]


def _qwens() -> list[Model]:
    common: dict[str, Any] = {"sequence": 4096, "rotary_base": 1_000_000.0}
    old: dict[str, Any] = {**common, "biases": "qkv"}
    tied = {"vocabulary": 151936, "tied_embeddings": True, "norm_epsilon": 1e-6}
    wide = {"vocabulary": 152064}
    new: dict[str, Any] = {**common, "head_width": 128, "qk_norm": True, "norm_epsilon": 1e-6, "vocabulary": 151936}
    return [
        _llama("qwen2.5-0.5b", 24, 896, 14, 2, 4864, **old, **tied),
        _llama("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, **old, **tied),
        _llama("qwen2.5-3b", 36, 2048, 16, 2, 11008, **old, **tied),
        _llama("qwen2.5-7b", 28, 3584, 28, 4, 18944, **old, **wide, norm_epsilon=1e-6),
        _llama("qwen2.5-14b", 48, 5120, 40, 8, 13824, **old, **wide),
        _llama("qwen2.5-32b", 64, 5120, 40, 8, 27648, **old, **wide),
        _llama("qwen2.5-72b", 80, 8192, 64, 8, 29568, **old, **wide),
        _llama("qwen3-0.6b", 28, 1024, 16, 8, 3072, **new, tied_embeddings=True),
        _llama("qwen3-1.7b", 28, 2048, 16, 8, 6144, **new, tied_embeddings=True),
        _llama("qwen3-4b", 36, 2560, 32, 8, 9728, **new, tied_embeddings=True),
        _llama("qwen3-8b", 36, 4096, 32, 8, 12288, **new),
        _llama("qwen3-14b", 40, 5120, 40, 8, 17408, **new),
        _llama("qwen3-32b", 64, 5120, 64, 8, 25600, **new),
    ]


def _smollms() -> list[Model]:
    common: dict[str, Any] = {"vocabulary": 49152, "sequence": 2048, "tied_embeddings": True}
    return [
        _llama("smollm2-135m", 30, 576, 9, 3, 1536, **common, rotary_base=100_000.0),
        _llama("smollm2-360m", 32, 960, 15, 5, 2560, **common, rotary_base=100_000.0),
        _llama("smollm2-1.7b", 24, 2048, 32, 32, 8192, **common, rotary_base=130_000.0),
    ]


def _pythias() -> list[Model]:
    def neox(name: str, layers: int, hidden: int, heads: int, vocabulary: int = 50304, **others: Any) -> Model:
        return Model(
            name=name,
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=vocabulary,
            sequence=2048,
            positions="rotary",
            rotary_share=0.25,
            residual="parallel",
            **{"activation": "gelu_exact", **others},
        )

    return [
        neox("pythia-70m", 6, 512, 8),
        neox("pythia-160m", 12, 768, 12),
        neox("pythia-410m", 24, 1024, 16),
        neox("pythia-1b", 16, 2048, 8),
        neox("pythia-1.4b", 24, 2048, 16),
        neox("pythia-2.8b", 32, 2560, 32),
        neox("pythia-6.9b", 32, 4096, 32, 50432),
        neox("pythia-12b", 36, 5120, 40, 50688),
        neox("gpt-neox-20b", 44, 6144, 64, 50432, activation="gelu"),
    ]
