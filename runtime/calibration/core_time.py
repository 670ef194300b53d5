"""What a collective takes of a core, where ranks' cores move its data: counted among products, as in a step.

A rank that has slept, and one that repeats nothing else, find other caches and quicker threads than a step leaves. And
nobody listens: a thread that watches exchanges takes as much of a core as they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.calibration.layouts import Axis
from runtime.calibration.sample import synchronize
from runtime.strategies.four_d.gemm import Signature
from twin.description.library import CollectiveKind

PRODUCT = Signature("forward", 256, 256, 256)
"""What is computed meanwhile, on CPUs."""


@dataclass(frozen=True)
class CoreTime:
    """Processor time on one rank, in seconds."""

    collective_seconds: float
    """Of the rank's process, its threads of gloo included, without that of products."""
    product_seconds: float
    """Of one product, by this thread's clock: all of it where products have one thread."""


def core_time(
    axis: Axis,
    kind: CollectiveKind,
    buffer: torch.Tensor,
    run: Callable[[], object],
    products: int,
    repeats: int,
    *,
    beside: bool,
) -> CoreTime:
    """Count some repeats of products and a collective, which is waited for at once or runs beside them.

    All ranks of the axis's layout that are at work must call it.
    """
    used, computing = time.process_time(), 0.0
    for _ in range(repeats):
        handle = axis.start(kind, buffer) if beside else None
        begin = time.thread_time()
        for _ in range(products):
            run()
        computing += time.thread_time() - begin
        (handle or axis.start(kind, buffer)).wait()
    synchronize(buffer.device)
    used = time.process_time() - used
    return CoreTime((used - computing) / repeats, computing / (repeats * products))
