"""Models of other families: sizes as published, rules of their shapes, and what training one takes."""

from __future__ import annotations

import pytest

from twin.description.presets import presets
from twin.description.problems import DescriptionError
from twin.strategies import load_job
from twin.strategies.four_d.memory import memory_by_category
from twin.trace.metrics import job_flops

PUBLISHED = {
    "gpt2": 124_439_808,  # tied, with a vocabulary of 50,257
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
}
"""Elements of the published weights, as the models' own pages count them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name: str) -> None:
    model = presets()[name]
    if name == "gpt2":
        model = model.model_copy(update={"tied_embeddings": True, "vocabulary": 50257})
    assert model.parameters == PUBLISHED[name]


def job(preset: str, grid: dict[str, int] | None = None, **options: object):
    sizes = {"data": 1, "z": 1, "y": 1, "x": 1, **(grid or {})}
    replicas = sizes["data"] * sizes["z"]
    return load_job(
        {
            "model": {"preset": preset, **options},
            "machine": {"extends": "dgx-h100", "nodes": 4096},
            "ranks": replicas * sizes["y"] * sizes["x"],
            "grid": sizes,
            "batch": {"sequences": replicas, "micro_sequences": 1},
        }
    )


def test_flops_of_grouped_heads_are_those_of_its_products() -> None:
    """Llama 3 8B: six flops a weight and token, of all but the table; and 12·s·h a layer and token for scores."""
    described = job("llama-3-8b")
    model = described.model
    weights = model.parameters - model.vocabulary * model.hidden - model.layers * 2 * model.hidden - model.hidden
    tokens = model.sequence
    expected = tokens * (6 * weights + 12 * model.layers * model.sequence * model.hidden)
    assert job_flops(described, recompute=False) == expected


def test_a_rank_holds_its_share_of_every_weight() -> None:
    """On one rank all of it, the tied table twice; over z, y and x the blocks' weights are in equal parts."""
    for name in ("llama-3.2-1b", "qwen3-0.6b", "pythia-160m"):
        alone = job(name)
        model = alone.model
        both = model.parameters + model.tied_embeddings * model.vocabulary * model.hidden
        assert memory_by_category(alone)["weights"] == 2 * both
        cut = job(name, {"z": 2, "y": 2, "x": 2})
        least = 2 * model.layers * model.block_weights / 8
        table = 2 * model.vocabulary * model.hidden / 2
        assert least + table < memory_by_category(cut)["weights"] < least + 1.5 * table


@pytest.mark.parametrize(
    ("preset", "options", "words"),
    [
        ("llama-3-8b", {"kv_heads": 5}, ["model.kv_heads = 5", "must divide heads 32", "nearest is 4"]),
        ("mistral-7b", {"window": 4096}, ["model.window = 4096", "shorter than the sequence of 8192", "at most 4096"]),
        ("pythia-70m", {"rotary_share": 0.05}, ["model.rotary_share = 0.05", "an even number"]),
        ("gpt2", {"max_positions": 512}, ["model.max_positions = 512", "the sequence has 1024 tokens"]),
        ("qwen3-0.6b", {"head_width": 127}, ["model.head_width = 127", "even head size"]),
        ("llama-3.1-8b", {"rotary_scaling": {"kind": "yarn", "factor": 2}}, ["rotary_scaling.kind", "llama3"]),
        ("llama-3-8b", {"norm": "group"}, ["model.norm", "'rms'"]),
    ],
)
def test_bad_shapes_say_what_to_do(preset: str, options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(DescriptionError) as error:
        job(preset, **options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_window_as_long_as_the_sequence_does_not_bite() -> None:
    assert job("mistral-7b", window=8192).model.window == 8192


def test_heads_of_keys_bound_y() -> None:
    with pytest.raises(DescriptionError, match=r"grid\.y = 16: must divide .* 8 heads of keys .* nearest is 8"):
        job("llama-3-70b", {"y": 16})


def test_replicas_alone_are_for_plain_models() -> None:
    raw = {"machine": "dgx-h100", "ranks": 8, "strategy": "ddp", "recompute": False, "batch": {"sequences": 8}}
    for known in ("llama-3-8b", "llama-2-7b", "qwen2.5-7b", "mistral-7b"):
        load_job({**raw, "model": known})
    lacking = {"qwen3-0.6b": "qk_norm = True", "pythia-160m": "residual = 'parallel'", "gpt2": "tied_embeddings = True"}
    for name, key in lacking.items():
        model = {"preset": name, "tied_embeddings": True} if name == "gpt2" else name
        with pytest.raises(DescriptionError, match=rf"model\.{key}: ddp has it not; use strategy: four_d"):
            load_job({**raw, "model": model})
    longer = {"preset": "gpt2", "sequence": 512, "max_positions": 1024}
    with pytest.raises(DescriptionError, match=r"model\.max_positions = 1024: ddp has it not"):
        load_job({**raw, "model": longer})
