"""The rate that a GPU keeps up: one large product of normal numbers after another, until its power limit is felt.

A few products in a burst run at clocks that the limit does not allow for long.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from runtime.calibration.gemms import product
from runtime.calibration.team import Team
from runtime.strategies.four_d.gemm import Signature

SHAPE = (8192, 8192, 8192)
"""A square product that fills any device: (m, n, k)."""
LOT = 32
"""Products from one look at the clock to the next."""
LEAST_SECONDS = 2.0
"""A power limit is an average over tens to hundreds of milliseconds."""


def measure_sustained(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time products without a pause, on all ranks at once; an entry on rank 0. Of GPUs only."""
    if team.device.type != "cuda":
        return []
    signature = Signature("forward", *SHAPE)
    run = product(signature, torch.bfloat16, team.device)
    run()
    team.start_together()
    begin, marks = time.perf_counter(), [_mark()]
    while time.perf_counter() - begin < max(seconds, LEAST_SECONDS):
        for _ in range(LOT):
            run()
        marks.append(_mark())
        marks[-2].synchronize()  # one lot behind what is issued, so that the device never rests
    torch.cuda.synchronize(team.device)
    lots = [one.elapsed_time(other) / 1e3 / LOT for one, other in pairwise(marks)]
    everyone = team.gather(settled(lots))
    if everyone is None:
        return []
    m, n, k = SHAPE
    return [{"m": m, "n": n, "k": k, "element_bytes": 2, "busy": team.ranks, "seconds": median(everyone)}]


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def settled(seconds: list[float]) -> float:
    """Return the middle of the later half of times.

    >>> settled([1.0, 1.0, 3.0, 4.0, 5.0])
    4.0
    """
    return median(seconds[len(seconds) // 2 :])
