"""Beyond a GPU's memory: its link to the host, copies that change types there, and what the host's cores update.

Copies cross from and to pinned memory, each way alone. A copy that changes the type of its numbers on the host is as
PyTorch does it: blocking, through pages that are not pinned. Only the first rank measures, while the others rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from runtime.calibration.sample import chunk_of, repeat
from runtime.calibration.team import Team

COPIED_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
CONVERTED_ELEMENTS = 1 << 26
UPDATED_ELEMENTS = 1 << 25
STREAM_PASSES, UPDATE_PASSES = 3, 7
"""Of vectors of fp32: a sum reads two and writes one; AdamW reads four and writes three."""
FEWEST = 3


def measure_tiers(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time copies and updates on the first rank; entries there. Of GPUs only."""
    if team.device.type != "cuda":
        return []
    entries = [*_copies(team.device, 0.4 * seconds), *_on_host(team.device, 0.6 * seconds)] if team.first else []
    team.start_together()
    return entries


def _copies(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Pinned copies, down to the host and up from it."""
    each = seconds / (2 * len(COPIED_BYTES))
    for size in COPIED_BYTES:
        here = torch.zeros(size, dtype=torch.uint8, device=device)
        there = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        for work, target, source in (("down", there, here), ("up", here, there)):

            def run(target: torch.Tensor = target, source: torch.Tensor = source) -> object:
                return target.copy_(source, non_blocking=True)

            sample = repeat(run, chunk_of(run, device), each, device)
            yield {"work": work, "bytes": float(size), "threads": 0, "seconds": sample.seconds}


def _on_host(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Copies that change types, in the device's bytes; sums and updates by all threads, and sums by one."""
    threads, each = torch.get_num_threads(), seconds / 5
    narrow = torch.zeros(CONVERTED_ELEMENTS, dtype=torch.bfloat16, device=device)
    wide = torch.zeros(CONVERTED_ELEMENTS, dtype=torch.float32)
    for work, target, source in (("converting_down", wide, narrow), ("converting_up", narrow, wide)):
        took = _median(lambda target=target, source=source: target.copy_(source), each)  # type: ignore[misc]
        yield {"work": work, "bytes": float(narrow.nbytes), "threads": 1, "seconds": took}
    del narrow, wide
    a, b, total = (torch.zeros(UPDATED_ELEMENTS) for _ in range(3))
    for count in dict.fromkeys((threads, 1)):
        torch.set_num_threads(count)
        took = _median(lambda: torch.add(a, b, out=total), each)
        yield {"work": "stream", "bytes": float(STREAM_PASSES * a.nbytes), "threads": count, "seconds": took}
    torch.set_num_threads(threads)
    weight = torch.nn.Parameter(a)
    weight.grad = b
    adam = torch.optim.AdamW([weight], fused=True)
    took = _median(adam.step, each)
    yield {"work": "update", "bytes": float(UPDATE_PASSES * a.nbytes), "threads": threads, "seconds": took}


def _median(run: Callable[[], object], seconds: float) -> float:
    """Time work that is done when it returns."""
    run()
    found: list[float] = []
    begin = time.perf_counter()
    while len(found) < FEWEST or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return median(found)
