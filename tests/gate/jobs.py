"""The jobs whose events the gate keeps digests of: examples, conformance, odd grids, every rank.

A case is a job, and how it is simulated: `folded`, `des`, or `ranks` with a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.recorder.jobs import JOBS, MODEL, ODD, job
from twin.description.job import Job
from twin.strategies import load_job

ROOT = Path(__file__).parents[2]
LARGE = 8
"""Ranks up to which the SimPy engine is also run on every rank."""


@dataclass(frozen=True)
class Case:
    """One job, simulated one way."""

    describe: Callable[[], Job]
    engine: Literal["folded", "des", "ranks"] = "folded"
    seed: int = 0


def cases() -> dict[str, Case]:
    """Name every case; what has the same name is the same case for ever."""
    found: dict[str, Case] = {}
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        found[f"example {path.stem}"] = Case(lambda path=path: load_job(path))
    for name, described in JOBS.items():
        found[f"conformance {name}"] = Case(lambda described=described: described)
        if described.ranks <= LARGE:
            found[f"conformance {name}, every rank by SimPy"] = Case(lambda described=described: described, "des")
    for name, (grid, more) in _ON_MACHINES.items():
        found[name] = Case(lambda grid=grid, more=more: job(grid, **more))
    found["every rank by SimPy, with a straggler"] = Case(
        lambda: job({"data": 2, "z": 2, "y": 2, "x": 2}, stragglers=[{"rank": 5, "slowdown": 1.3}]), "des"
    )
    for seed in range(6):
        found[f"every rank, seed {seed}"] = Case(lambda: job({"data": 4, "z": 8, "y": 2, "x": 2}), "ranks", seed)
        found[f"every rank, odd, buckets, seed {seed}"] = Case(
            lambda: job({"data": 3, "z": 7, "y": 3, "x": 2}, model=ODD, data_reduction=_BUCKETS), "ranks", seed
        )
    return found


_BUCKETS = {"mode": "overlapped", "bucket": "1 KiB"}
_ALL: dict[str, int] = {"data": 2, "z": 4, "y": 2, "x": 2}
_ON_MACHINES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    **{
        f"{machine}, {' × '.join(f'{a} {s}' for a, s in grid.items())}": (grid, {"machine": machine})
        for machine in ("perlmutter", "alps", "dgx-h100", "dgx-a100", "laptop", "hgx-h200")
        for grid in ({"data": 2, "z": 2, "y": 2}, {"z": 2, "y": 2, "x": 2})
    },
    "a straggler": (_ALL, {"stragglers": [{"rank": 7, "slowdown": 1.5}]}),
    "two stragglers": (_ALL, {"stragglers": [{"rank": 0, "slowdown": 1.1}, {"rank": 31, "slowdown": 2.0}]}),
    "a straggler on odd grid": ({"z": 7, "y": 3}, {"model": ODD, "stragglers": [{"rank": 20, "slowdown": 1.2}]}),
    "no slowest device": (_ALL, {"slowest_device": False}),
    "half-rate NIC": (_ALL, {"degraded": [{"node": 1, "nic": 0, "rate": 0.5}]}),
    "slow link inside a node": (_ALL, {"degraded": [{"node": 0, "link": [0, 1], "rate": 0.3}]}),
    "slow dragonfly group": ({"data": 64, "z": 16}, {"degraded": [{"group": 0, "rate": 0.2}]}),
    "scattered, blocks": ({"data": 64, "z": 16}, {"placement": {"groups": 8, "order": "blocks"}}),
    "scattered, cyclic": ({"data": 16, "z": 16, "x": 4}, {"placement": {"groups": 8, "order": "cyclic"}}),
    "another library": (_ALL, {"library": "pccl"}),
    "many micro-steps": (_ALL, {"per_rank": 12}),
    "many micro-steps, skewed": (_ALL, {"per_rank": 12, "stragglers": [{"rank": 3, "slowdown": 1.4}]}),
    "shared cores": ({"data": 2, "z": 2}, {"machine": "laptop", "model": MODEL, "gather_unit": "block"}),
}
