"""The real thing: 4D-parallel training on torch.distributed, the same job file that the twin simulates.

* `mesh`, `launch`, `environment`, `local`: who the ranks are and how they meet.
* `ops`, `collectives`: every op of a step by name, every collective through one module.
* `shards`, `store`, `gathers`, `random`: what a rank holds, and how it comes and goes.
* `layers`, `model`, `step`, `reduction`, `optimizer`: the training step of a GPT.
* `data`, `feed`, `evaluate`, `checkpoint`, `tracing`, `metrics`, `trainer`: a training run.
* `auto`: `auto_parallelize`, for models of one's own.
* `recorder`: what a rank of any world would do, without that world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.auto import auto_parallelize

__all__ = ["auto_parallelize"]


def __getattr__(name: str) -> Any:
    if name == "auto_parallelize":
        from runtime.auto import auto_parallelize  # noqa: PLC0415  loads torch

        return auto_parallelize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
