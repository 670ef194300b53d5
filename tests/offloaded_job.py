"""A job whose optimizer's states lie on the host, shared by tests of what is drawn of it."""

from __future__ import annotations

from typing import Any

OFFLOADED: dict[str, Any] = {
    "model": "llama-3-8b",
    "machine": "4xh100",
    "ranks": 4,
    "strategy": "fsdp",
    "flavour": "deepspeed",
    "grid": {"weights": 4},
    "batch": {"sequences": 4, "micro_sequences": 1},
    "recompute": True,
    "offload": {"optimizer": {}},
}
