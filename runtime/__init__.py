"""The real thing: training on torch.distributed, the same job file that the twin simulates.

From Python, each loaded when it is first used:

    from runtime import train, record, auto_parallelize

    train("examples/tiny-gpt.yaml", ranks=4, out="runs/tiny")

* `api`: the functions above, and what they return.
* `launch`, `parallel`: who the ranks are and how they meet; every op by name, every collective through one module.
* `weights`, `model`, `step`: what a rank holds; the model; one training step.
* `strategies`: how a job is cut over ranks, the same folders as in `twin.strategies`.
* `data`, `plan`, `train`, `records`, `checkpoint`: a training run, and what it leaves behind.
* `inference`: a trained model asked: text from it, loss on text.
* `survive`, `watch`, `tracing`, `slurm`: failures, slow ranks, traces, clusters.
* `auto`: `auto_parallelize`, for models of one's own.
* `recorder`: what a rank of any world would do, without that world. `calibration`: what a machine can do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twin.rooms import call_rooms

if TYPE_CHECKING:
    from runtime.api import Training, record, train
    from runtime.auto import auto_parallelize

__all__ = ["Training", "auto_parallelize", "record", "train"]


def __getattr__(name: str) -> Any:
    if name == "auto_parallelize":
        return import_module("runtime.auto").auto_parallelize  # loads torch
    if name in __all__:
        return getattr(import_module("runtime.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


call_rooms(__name__, __all__)
