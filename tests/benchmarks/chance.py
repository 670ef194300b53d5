"""How far the all-ranks engine is from the SimPy engine where links are shared and ranks differ.

    python -m tests.benchmarks.chance [JOBS]

Random grids of up to 64 ranks on four machines with their own spread, jitter and noise; both
engines get the same draws. Without chance, or without shared links, they agree to rounding.
"""

from __future__ import annotations

import random
import sys

import numpy as np

from twin.description.job import Job
from twin.engine.all_ranks import drawn, simulate_ranks
from twin.engine.cube import Cube
from twin.engine.differences import differences
from twin.engine.simulate import simulate
from twin.strategies import load_job

MACHINES = ("frontier", "perlmutter", "alps", "dgx-h100")
MODEL = {"layers": 4, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 51200}


def job(draw: random.Random, seed: int) -> Job:
    """Draw a job."""
    left, sizes = 64, {}
    for axis in draw.sample(["data", "z", "y", "x"], 4):
        sizes[axis] = draw.choice([size for size in (1, 2, 4, 8) if size <= left])
        left //= sizes[axis]
    replicas = sizes["data"] * sizes["z"]
    return load_job(
        {
            "model": MODEL,
            "machine": draw.choice(MACHINES),
            "ranks": replicas * sizes["y"] * sizes["x"],
            "grid": sizes,
            "batch": {"sequences": 2 * replicas, "micro_sequences": 1},
            "seed": seed,
            "data_reduction": {"mode": draw.choice(["one_bucket", "overlapped", "sharded"])},
        }
    )


def error(described: Job) -> float:
    """(all-ranks engine − SimPy engine) / SimPy engine, of the step."""
    cube, every = Cube.of(described.concrete_grid.mesh), simulate_ranks(described)
    same = differences(every.nominal, cube, drawn(described, cube, described.seed))
    expected = simulate(described, engine="des", differences=same).step_seconds
    return every.step_seconds / expected - 1.0


def main() -> None:
    """Print errors by machine."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    draw = random.Random(1)
    errors: dict[str, list[float]] = {}
    for seed in range(count):
        described = job(draw, seed)
        errors.setdefault(described.machine.name, []).append(error(described))
    everything = [e for found in errors.values() for e in found]
    print(f"{'machine':12} {'jobs':>5} {'median':>8} {'90 %':>8} {'most':>8}")
    for name, found in [*sorted(errors.items()), ("all", everything)]:
        off = np.abs(found)
        print(
            f"{name:12} {len(found):5} {np.median(off):8.3%} {np.quantile(off, 0.9):8.3%} {max(found, key=abs):+8.3%}"
        )


if __name__ == "__main__":
    main()
