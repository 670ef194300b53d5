"""What worker processes do in tests of Hugging Face models: load, answer, say what was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from runtime.huggingface.weights import begin_with, initial_weights
from runtime.parallel.mesh import Mesh
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.model import GPT
from twin.description.train import Train
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES, Grid

DATA = Path(__file__).parent / "data"
FAMILIES = (
    *("llama", "llama-scaled", "llama-biased", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "gpt_neox-serial"),
)
ALONE = dict.fromkeys(AXES, 1)
BATCH = 4
TOLERANCE = 1e-5


def job(model: Any, grid: dict[str, int], lora: dict[str, Any] | None = None) -> Any:
    """A job of a model on a grid."""
    described = {
        "model": model,
        "machine": {"extends": "laptop", "nodes": 8},
        "precision": "fp32",
        "recompute": False,
        "ranks": Grid(**grid).ranks,
        "grid": grid,
        "batch": {"sequences": BATCH, "micro_sequences": BATCH // (grid["data"] * grid["z"])},
        "lora": lora,
    }
    return load_job(described)


def build(
    model: Any, grid: dict[str, int] = ALONE, mesh: Mesh | None = None, lora: dict[str, Any] | None = None
) -> GPT:
    """One rank's part of a model, with the weights that training would begin with."""
    mesh = mesh or Mesh.alone(Grid())
    return GPT(FourDContext(job(model, grid, lora), mesh, torch.device("cpu"), torch.float32, torch.float32))


def answer(model: GPT, tokens: torch.Tensor) -> torch.Tensor:
    """Logits (sequences, s, V of this rank) of this replica's share of the batch."""
    context = model.context
    share = len(tokens) // (context.grid.data * context.grid.z)
    first = context.mesh.replica * share
    with torch.no_grad():
        logits = model(tokens[first : first + share])
    context.gathers.end_micro_step()
    return logits.view(share, tokens.shape[1], -1)


def error_of(model: GPT, expected: Path) -> float:
    """Largest difference of a rank's logits from those that transformers gave."""
    known = load_file(expected)
    found = answer(model, known["tokens"])
    context = model.context
    share, mine = found.shape[0], model.head.weight_shard.shard
    rows = mine.part_rows * context.mesh.coordinates["y"]
    first = context.mesh.replica * share
    wanted = known["logits"][first : first + share, :, rows : rows + mine.valid_rows]
    assert wanted.shape[2] == mine.valid_rows
    return float((found[..., : mine.valid_rows] - wanted).abs().max())


def share_of(model: GPT) -> int:
    """Elements of the full model that this rank holds."""
    parameters = model.context.store.in_order()
    return sum(r.count for parameter in parameters for r in parameter.shard.rectangles())


def check(worker: Any, grid: dict[str, int], family: str, weights: str) -> float:
    """Load weights on a rank and compare its logits."""
    model = build(f"hf:{DATA / family}", grid, worker.mesh(Grid(**grid)))
    initial_weights(weights, model.context)
    return error_of(model, DATA / family / "answer.safetensors")


LORA: dict[str, dict[str, Any]] = {
    "llama": {"rank": 3, "alpha": 6, "targets": ["q", "v", "gate", "down"]},
    "qwen3": {"rank": 2, "alpha": 5 * 2**0.5, "targets": ["q", "k", "v", "o", "gate", "up", "down"]},
    "gpt2": {"rank": 3, "alpha": 8, "targets": ["q", "k", "v", "down"]},
    "gpt_neox": {"rank": 2, "alpha": 2, "targets": ["q", "k", "v", "o", "up"]},
}
"""What `make_adapters.py` has made; GPT-2's are scaled otherwise there."""


def with_adapters(family: str, grid: dict[str, int] = ALONE, mesh: Mesh | None = None) -> GPT:
    """A model beside the adapters that PEFT has saved."""
    base = f"hf:{DATA / family}"
    model = build(base, grid, mesh, LORA[family])
    begin_with(Train(initial_weights=base, initial_adapters=str(DATA / family / "peft")), model.context)
    return model


def check_adapters(worker: Any, grid: dict[str, int], family: str) -> float:
    """Load weights and adapters on a rank and compare its logits."""
    model = with_adapters(family, grid, worker.mesh(Grid(**grid)))
    return error_of(model, DATA / family / "peft" / "answer.safetensors")
