"""Megatron's pipelines laid bare: each pass is one kernel of a chosen length, messages take a chosen time or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from twin.cost import algorithms
from twin.cost.collective_options import Option
from twin.schedule.kernels import Memory
from twin.schedule.ops import Compute
from twin.strategies import load_job
from twin.strategies.megatron.bodies import Bodies
from twin.strategies.megatron.orders import Action, Kind
from twin.strategies.megatron.place import Stage

MODEL = {"hidden": 64, "heads": 4, "sequence": 64, "vocabulary": 256}
RATE = 1e12
Seconds = Callable[[Kind, int], float]
"""How long an action of a kind takes on a stage of the model."""


def job(schedule: str, ranks: int, micro_steps: int, chunks: int = 1, **options: Any) -> Any:
    """Describe a pipeline on one replica, whose stages have a layer each."""
    stages = ranks if schedule == "dualpipe" else ranks * chunks
    return load_job(
        {
            "strategy": "megatron",
            "model": {**MODEL, "layers": stages},
            "machine": "dgx-h100",
            "ranks": ranks,
            "grid": {"pipeline": ranks},
            "schedule": schedule,
            "chunks": chunks,
            "batch": {"sequences": micro_steps, "micro_sequences": 1},
            "slowest_device": False,
            "cuda_graphs": True,  # the host costs nothing
            **options,
        }
    )


@contextmanager
def kernels_of(seconds: Seconds, message_seconds: float = 0.0) -> Iterator[None]:
    """Let every pass be one kernel of so many seconds, and every message take as long."""

    def written(self: Bodies, prefix: str, action: Action, stage: Stage, hooks: Any, *, first: bool) -> list[Any]:
        del self, hooks, first
        return [Compute(f"{prefix}work", "fwd", Memory(RATE * seconds(action.kind, stage.number)))]

    def offer(group: Any, library: Any, kind: str, bytes_: float) -> list[Option]:
        del group, library, kind, bytes_
        return [Option("given", "Simple", message_seconds, message_seconds, 0.0, 0.0, 0.0)]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Bodies, "_written", written)
        patched.setattr("twin.engine.compiler.kernel_seconds", _seconds)
        algorithms.register("given", alone=True)(offer)
        try:
            yield
        finally:
            algorithms.unregister("given")


def _seconds(device: Any, kernel: Any, **options: Any) -> float:
    del device, options
    return float(kernel.bytes) / RATE
