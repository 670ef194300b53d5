"""Which tensors of a family's files each parameter is made of: tables, and what of them a model has.

`{i}` stands for the number of a block. A parameter of several keys has their rows one after the other. `how` says
where rows lie in a key's tensor. `rows`: as they are; `columns`: it is transposed; `heads`: for each head in turn its
rows of q, k and v.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from runtime.huggingface.bands import Band
from twin.description.model import Model

How = Literal["rows", "columns", "heads"]
TOKENS, HEAD = "embedding.tokens", "head.weight"


@dataclass(frozen=True)
class Map:
    """What a parameter is made of."""

    keys: tuple[str, ...]
    how: How = "rows"


@dataclass(frozen=True)
class Family:
    """The files of a family."""

    maps: dict[str, Map]
    """By parameter, `.weight` and `.bias` where the model has them."""
    prefix: str
    """Of all keys but the head's; files of the model without its head lack it."""
    ignored: tuple[str, ...] = ()
    """Ends of keys that are no parameters."""
    also: dict[str, str] = field(default_factory=dict)
    """Other names of keys."""


def _one(key: str, how: How = "rows") -> Map:
    return Map((key,), how)


_ATTENTION, _MLP = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
_LLAMA = Family(
    {
        TOKENS: _one("model.embed_tokens.weight"),
        "blocks.{i}.norm1": _one("model.layers.{i}.input_layernorm"),
        "blocks.{i}.qkv": Map((_ATTENTION + "q_proj", _ATTENTION + "k_proj", _ATTENTION + "v_proj")),
        "blocks.{i}.q_norm": _one(_ATTENTION + "q_norm"),
        "blocks.{i}.k_norm": _one(_ATTENTION + "k_norm"),
        "blocks.{i}.projection": _one(_ATTENTION + "o_proj"),
        "blocks.{i}.norm2": _one("model.layers.{i}.post_attention_layernorm"),
        "blocks.{i}.mlp_up": Map((_MLP + "gate_proj", _MLP + "up_proj")),
        "blocks.{i}.mlp_down": _one(_MLP + "down_proj"),
        "final_norm": _one("model.norm"),
        HEAD: _one("lm_head.weight"),
    },
    prefix="model.",
    ignored=("rotary_emb.inv_freq",),
)
_GPT2 = Family(
    {
        TOKENS: _one("transformer.wte.weight"),
        "embedding.positions": _one("transformer.wpe.weight"),
        "blocks.{i}.norm1": _one("transformer.h.{i}.ln_1"),
        "blocks.{i}.qkv": _one("transformer.h.{i}.attn.c_attn", "columns"),
        "blocks.{i}.projection": _one("transformer.h.{i}.attn.c_proj", "columns"),
        "blocks.{i}.norm2": _one("transformer.h.{i}.ln_2"),
        "blocks.{i}.mlp_up": _one("transformer.h.{i}.mlp.c_fc", "columns"),
        "blocks.{i}.mlp_down": _one("transformer.h.{i}.mlp.c_proj", "columns"),
        "final_norm": _one("transformer.ln_f"),
        HEAD: _one("lm_head.weight"),
    },
    prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
)
_NEOX = Family(
    {
        TOKENS: _one("gpt_neox.embed_in.weight"),
        "blocks.{i}.norm1": _one("gpt_neox.layers.{i}.input_layernorm"),
        "blocks.{i}.qkv": _one("gpt_neox.layers.{i}.attention.query_key_value", "heads"),
        "blocks.{i}.projection": _one("gpt_neox.layers.{i}.attention.dense"),
        "blocks.{i}.norm2": _one("gpt_neox.layers.{i}.post_attention_layernorm"),
        "blocks.{i}.mlp_up": _one("gpt_neox.layers.{i}.mlp.dense_h_to_4h"),
        "blocks.{i}.mlp_down": _one("gpt_neox.layers.{i}.mlp.dense_4h_to_h"),
        "final_norm": _one("gpt_neox.final_layer_norm"),
        HEAD: _one("embed_out.weight"),
    },
    prefix="gpt_neox.",
    ignored=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    also={"lm_head.weight": "embed_out.weight"},
)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
    "gpt2": _GPT2,
    "gpt_neox": _NEOX,
}


def parameters(model: Model) -> dict[str, tuple[int, ...]]:
    """Return name and full shape of every parameter of a model."""
    hidden = model.hidden
    shapes: dict[str, tuple[int, ...]] = {TOKENS: (model.vocabulary, hidden)}
    if model.position_rows:
        shapes["embedding.positions"] = (model.position_rows, hidden)

    def norm(name: str, size: int = hidden, *, bias: bool = model.norm_biases) -> None:
        shapes[f"{name}.weight"] = (size,)
        if bias:
            shapes[f"{name}.bias"] = (size,)

    for layer in range(model.layers):
        block = f"blocks.{layer}."
        norm(block + "norm1")
        norm(block + "norm2")
        for linear, shape in model.block_linears.items():
            shapes[f"{block}{linear}.weight"] = shape
            if model.has_bias(linear):
                shapes[f"{block}{linear}.bias"] = shape[:1]
        if model.qk_norm:
            norm(block + "q_norm", model.head_size, bias=False)
            norm(block + "k_norm", model.head_size, bias=False)
    norm("final_norm")
    return shapes | {HEAD: (model.vocabulary, hidden)}


@dataclass(frozen=True)
class Layout:
    """A model's parameters and a family's tensors, and what is where."""

    ours: dict[str, tuple[int, ...]]
    """Full shapes of parameters."""
    theirs: dict[str, tuple[int, ...]]
    """Shapes of the tensors in their files."""
    bands: tuple[Band, ...]


def layout(model: Model, family: str) -> Layout:
    """Return what a model's parameters are made of in a family's files; a tied head is the table of tokens."""
    maps, bands = FAMILIES[family].maps, list[Band]()
    ours = parameters(model)
    theirs: dict[str, tuple[int, ...]] = {}
    for name, shape in ours.items():
        wanted = TOKENS if name == HEAD and model.tied_embeddings else name
        found = _map_of(maps, wanted)
        vector = len(shape) == 1
        transposed = found.how == "columns" and not vector
        first = 0
        for key, rows in zip(found.keys, _parts(model, name, shape, len(found.keys)), strict=True):
            theirs[key] = (rows, *shape[1:])[::-1] if transposed else (rows, *shape[1:])
            if found.how == "heads":
                bands += _by_heads(model, name, key)
            else:
                bands.append(Band(name, first, key, 0, rows, transposed))
            first += rows
    return Layout(ours, theirs, tuple(bands))


def _map_of(maps: dict[str, Map], name: str) -> Map:
    """Find what a parameter is made of, with the keys of its block, weight or bias."""
    words = name.split(".")
    layer = words[1] if words[0] == "blocks" else ""
    template = ".".join([words[0], "{i}", *words[2:]]) if layer else name
    if template in maps:
        return Map(tuple(key.replace("{i}", layer) for key in maps[template].keys), maps[template].how)
    module, _, leaf = template.rpartition(".")
    return Map(tuple(f"{key.replace('{i}', layer)}.{leaf}" for key in maps[module].keys), maps[module].how)


def _parts(model: Model, name: str, shape: tuple[int, ...], keys: int) -> tuple[int, ...]:
    """Rows of each of the keys that a parameter is made of."""
    if keys == 1:
        return shape[:1]
    return model.qkv_parts if ".qkv." in name else (shape[0] // keys,) * keys


def _by_heads(model: Model, name: str, key: str) -> list[Band]:
    """Rows of q, k, v lie head by head in the file: (heads, 3, size); here (3, heads, size)."""
    heads, size = model.heads, model.head_size
    return [
        Band(name, (part * heads + head) * size, key, (head * 3 + part) * size, size)
        for part in range(3)
        for head in range(heads)
    ]
