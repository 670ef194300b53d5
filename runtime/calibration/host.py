"""What an op costs the host when there is nothing to compute: layers, autograd, dispatch.

Models of two depths tell what a block more takes, whatever a step costs besides.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from runtime.calibration.listening import hear
from runtime.calibration.quiet import QuietRank, quiet_context
from runtime.calibration.sample import spread, synchronize
from runtime.calibration.team import Team
from twin.strategies.four_d.grid import Grid

MODEL = {"hidden": 16, "heads": 2, "sequence": 4, "vocabulary": 16}
FEW, MANY = 2, 8
"""Layers."""
CASES = ((Grid(), FEW), (Grid(), MANY), (Grid(x=2, y=2), FEW), (Grid(z=2), FEW), (Grid(x=2, y=2, z=2), FEW))
MIN_STEPS = 5


def measure_host(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time the smallest ops on rank 0, whose host may run ahead of its device; entries on rank 0.

    Each entry: how many computing ops and collectives there were, seconds of the host from the first to the last, and
    seconds inside the ops: on a GPU those of the device, which waits for the host there too.
    """
    entries = [_entry(team, *case, seconds / len(CASES)) for case in CASES] if team.first else []
    team.start_together()  # the others have rested
    return entries


def _entry(team: Team, grid: Grid, layers: int, seconds: float) -> dict[str, Any]:
    rank = QuietRank(quiet_context({**MODEL, "layers": layers}, grid, team.device))
    for _ in range(2):
        rank.step()
    notes = hear(team.device, rank.step)
    plain: list[float] = []
    heard: list[float] = []
    inside: list[float] = []
    begin = time.perf_counter()
    while len(plain) < MIN_STEPS or time.perf_counter() - begin < seconds:
        plain.append(_timed(team, rank))
        start = time.perf_counter()
        found = hear(team.device, rank.step)
        heard.append(time.perf_counter() - start)
        inside.append(sum(n.end_ns - n.begin_ns for n in found if n.kind == "compute") / 1e9)
    ops = sum(note.kind == "compute" for note in notes)
    return {
        "grid": grid.model_dump(),
        "layers": layers,
        "ops": ops,
        "collectives": sum(note.kind == "collective" for note in notes),
        "seconds": median(plain),
        "spread": spread(plain),
        "seconds_per_op": median(plain) / ops,
        "seconds_listened": median(heard),
        "seconds_inside_ops": median(inside),
    }


def _timed(team: Team, rank: QuietRank) -> float:
    start = time.perf_counter()
    rank.step()
    elapsed = time.perf_counter() - start  # of the host: the device may still be at work
    synchronize(team.device)
    return elapsed
