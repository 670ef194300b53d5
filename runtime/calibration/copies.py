"""Copying and adding flat buffers: what gathered weights and scattered gradients cost beside their transfer.

The runtime does this between named ops (`Parameter.accumulate`, `WeightGathers`), in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runtime.calibration.busy import busy_sets, joined, timed_on
from runtime.calibration.sample import copies_beyond_cache, in_turn
from runtime.calibration.team import Team

ELEMENTS = (1 << 8, 1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22)
WIDE_ELEMENTS = (1 << 26,)
"""On GPUs as well."""
BYTES_PER_ELEMENT = {"copy": 8.0, "add": 12.0}
"""Read and written."""


def measure_copies(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time copies and sums on one rank and on all; entries on rank 0."""
    sizes = ELEMENTS if team.device.type == "cpu" else (*ELEMENTS, *WIDE_ELEMENTS)
    cases = [(name, elements) for name in BYTES_PER_ELEMENT for elements in sizes]
    each = 0.7 * seconds / (len(cases) * len(busy_sets(team)))
    entries = []
    for name, elements in cases:
        run = flat_work(name, elements, team.device)
        for busy in busy_sets(team):
            found = team.gather(timed_on(team, busy, run, each))
            sample = joined(found) if found else None
            if sample is not None:
                entries.append(
                    {
                        "name": name,
                        "elements": elements,
                        "bytes": BYTES_PER_ELEMENT[name] * elements,
                        "busy": len(busy),
                        "seconds": sample.seconds,
                        "spread": sample.spread,
                        "repeats": sample.repeats,
                    }
                )
    return entries


def flat_work(name: str, elements: int, device: torch.device) -> Callable[[], object]:
    """A copy or a sum to repeat, on buffers that are not in the cache."""

    def once(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
        if name == "copy":
            return lambda: target.copy_(source)
        return lambda: target.add_(source)

    pairs = copies_beyond_cache(8.0 * elements, device)
    return in_turn(
        [once(torch.zeros(elements, device=device), torch.zeros(elements, device=device)) for _ in range(pairs)]
    )
