"""Small jobs of strategy megatron, and what their ranks move: shared by its tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from twin.schedule.ops import Compute, Simple, Start, Wait
from twin.strategies import load_job, strategy_of

B, S, H, HEADS, V = 2, 256, 512, 8, 4096
"""Sequences of a micro-batch, tokens of a sequence, width, heads, vocabulary."""
WHOLE = 2.0 * B * S * H
"""Bytes of the residual stream of a micro-batch: 2bsh."""
BF16, FP32 = 2, 4
MODEL: dict[str, Any] = {"layers": 4, "hidden": H, "heads": HEADS, "sequence": S, "vocabulary": V}


def described(
    grid: dict[str, int], *, micro_steps: int = 4, sequences: int = B, model: Any = None, **options: Any
) -> Any:
    """Describe a job on a grid; `model` are changes of the model."""
    ranks = 1
    for size in grid.values():
        ranks *= size
    raw = {
        "strategy": "megatron",
        "model": {**MODEL, **(model or {})},
        "machine": "dgx-h100",
        "ranks": ranks,
        "grid": grid,
        "batch": {"sequences": grid.get("data", 1) * micro_steps * sequences, "micro_sequences": sequences},
        "recompute": False,
        **options,
    }
    return load_job(raw)


def ops(job: Any, stage: int = 0) -> list[tuple[str, Simple]]:
    """Return the ops of a stage's ranks with their names."""
    strategy = strategy_of(job)
    return list(strategy.schedule(job, strategy.roles(job)[stage]).named())


def started(job: Any, stage: int = 0, within: str = "", communicator: str = "") -> list[tuple[str, Start]]:
    """Return collectives and messages of a stage, of names and communicators that contain a word; not of all ranks."""
    return [
        (name, op)
        for name, op in ops(job, stage)
        if isinstance(op, Start)
        and within in name
        and communicator in op.communicator
        and not op.communicator.endswith("_everyone")
    ]


def moved(job: Any, stage: int = 0, within: str = "", communicator: str = "") -> Counter[tuple[str, float]]:
    """Count them by kind and bytes."""
    return Counter((op.kind, op.bytes) for _, op in started(job, stage, within, communicator))


def hidden_by(job: Any, within: str, kind: str) -> list[str]:
    """Name what computes between the starts of such collectives and their waits."""
    flying: set[str] = set()
    found = []
    for name, op in ops(job):
        if within not in name:
            continue
        if isinstance(op, Start) and op.kind == kind:
            flying.add(name)
        elif isinstance(op, Wait):
            flying.discard(name)
        elif flying and isinstance(op, Compute):
            found.append(name.rpartition(within)[2] if within else name)
    return found


def parameters(layers: int = 4, *, tensor: int = 1, ends: str = "both") -> int:
    """Count the elements of a tensor rank by hand: matrices and column biases are cut, norms and row biases are not."""
    block = 12 * H * H // tensor + (3 + 4) * H // tensor + 2 * H + 4 * H
    first = V * H // tensor + S * H
    last = V * H // tensor + 2 * H
    return layers * block + first * (ends in ("both", "first")) + last * (ends in ("both", "last"))
