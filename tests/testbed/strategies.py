"""Every strategy on the test bed: eight ways to cut each of three models, by one calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.testbed.scenarios import RATE

SEQUENCES = 16
RANKS = 8
WAYS: dict[str, dict[str, Any]] = {
    "4D z8": {"grid": {"z": 8}},
    "4D data2 z2 y2": {"grid": {"data": 2, "z": 2, "y": 2}},
    "DDP": {"strategy": "ddp", "grid": {"data": 8}},
    "FSDP2": {"strategy": "fsdp", "grid": {"weights": 8}},
    "HSDP data4 weights2": {"strategy": "fsdp", "grid": {"data": 4, "weights": 2}},
    "tensor2 data4": {"strategy": "megatron", "flavour": "torch", "grid": {"tensor": 2, "data": 4}},
    "pipeline4 tensor2 1F1B": {
        "strategy": "megatron",
        "flavour": "torch",
        "grid": {"pipeline": 4, "tensor": 2},
        "batch": {"sequences": SEQUENCES, "micro_sequences": 2},
    },
    "pipeline4 data2 ZB-H1": {
        "strategy": "megatron",
        "flavour": "torch",
        "schedule": "zb_h1",
        "grid": {"pipeline": 4, "data": 2},
        "batch": {"sequences": SEQUENCES, "micro_sequences": 1},
    },
}
"""Grids and options of each strategy; micro-batches are the whole local batch where nothing else is said."""


@dataclass(frozen=True)
class StrategyScenario:
    """A model to train in every one of these ways."""

    name: str
    title: str
    model: dict[str, Any] = field(default_factory=dict)
    rate_bits_per_second: float = RATE

    def jobs(self, ranks: int, machine: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each way's label, and the job as a mapping."""
        if ranks != RANKS:
            raise ValueError(f"these jobs have {RANKS} ranks, not {ranks}")
        for label, way in WAYS.items():
            grid = way["grid"]
            replicas = grid.get("data", 1) * grid.get("z", 1) * grid.get("weights", 1)
            yield (
                label,
                {
                    "batch": {"sequences": SEQUENCES, "micro_sequences": SEQUENCES // replicas},
                    "precision": "fp32",
                    "recompute": False,
                    "model": self.model,
                    **way,
                    "name": f"{self.name}-{label.replace(' ', '-')}",
                    "machine": machine,
                    "ranks": ranks,
                },
            )


STRATEGIES = (
    StrategyScenario(
        "gpt",
        "every strategy: GPT of 4 layers, 256 wide",
        {"layers": 4, "hidden": 256, "heads": 8, "sequence": 128, "vocabulary": 512},
    ),
    StrategyScenario(
        "llama",
        "every strategy: SwiGLU, rotary positions, large vocabulary",
        {
            "layers": 4,
            "hidden": 192,
            "heads": 8,
            "sequence": 96,
            "vocabulary": 4000,
            "activation": "swiglu",
            "positions": "rotary",
        },
    ),
    StrategyScenario(
        "long",
        "every strategy: narrow, long sequences",
        {"layers": 8, "hidden": 128, "heads": 4, "sequence": 256, "vocabulary": 512},
    ),
)
