"""4D beyond the published algorithm, predicted for the paper's runs: the fastest as published, and the fastest found.

    python -m tests.benchmarks.beyond [--out FILE] [--runs NAME,…]

Both are searched over the grids of `ONLY` and the three largest micro-batches that fit. As published: every block is
computed again, nothing of `overlap` beyond the paper. Beyond: also how many blocks are computed again and how far, two
halves, gathers across blocks two ahead, optimizer states divided over data; then, with what was found, what is divided
over x, how x and y cut linears and what recomputation keeps, over all grids again. What a gain rests on is varied one
by one, with both steps predicted anew: interference, rate and latency of the network, memory bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twin.cost.memory import memory_use
from twin.description.job import Job
from twin.description.machine import Machine
from twin.description.problems import DescriptionError
from twin.engine.crew import processes
from twin.engine.parallel import cores
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.search.over import MICRO
from twin.search.search import search
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES, Grid
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.options import Options
from twin.validate.published import SEQUENCES, runs

BEYOND: dict[str, Any] = {
    "data_reduction": {"mode": "sharded_overlapped"},
    "overlap": {"across_blocks": True, "prefetch_depth": 2},
}
OVER = frozenset((MICRO, "recompute_keeps", "recompute_stops_early", "halves", "across_blocks"))
THEN = frozenset((MICRO, "divide", "tensor", "recompute_keeps", "recompute_stops_early"))
"""Varied over all grids again, with what was found first."""
LAST = frozenset((MICRO, "recompute", "recompute_layers", "recompute_keeps", "recompute_stops_early"))
"""Varied on the grid that was found."""
ONLY = {"z": frozenset((16, 32, 64, 128, 256, 512)), "y": frozenset((1, 2, 3, 4, 8, 16)), "x": frozenset((1, 2, 4, 8))}
"""Sizes of axes that are tried: all of them would take an hour."""
VARIED: dict[str, tuple[str, Callable[[Machine], float], str, tuple[float, float]]] = {
    "compute slowed by collectives": (
        "machine.variation.compute_slowdown",
        lambda machine: machine.variation.compute_slowdown,
        "",
        (0.0, 2.0),
    ),
    "collectives slowed by compute": (
        "machine.variation.collective_slowdown",
        lambda machine: machine.variation.collective_slowdown,
        "",
        (0.0, 2.0),
    ),
    "network rate": (
        "machine.nic.bandwidth",
        lambda machine: machine.nic.bandwidth_bytes_per_second,
        " B/s",
        (0.75, 1.25),
    ),
    "network latency": ("machine.nic.latency", lambda machine: machine.nic.latency_seconds, " s", (0.5, 2.0)),
    "memory bandwidth": (
        "machine.device.memory_bandwidth",
        lambda machine: machine.device.memory_bandwidth_bytes_per_second,
        " B/s",
        (0.8, 1.2),
    ),
}
"""What is varied: its key, its value, its unit, and by what that is multiplied."""


def described(run: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The job of a published run, its grid and micro-batch open."""
    return {
        "name": f"{run['model']} on {run['ranks']} of {run['machine']}",
        "model": run["model"],
        "machine": run["machine"],
        "ranks": run["ranks"],
        "batch": {"sequences": SEQUENCES},
        **more,
    }


def fastest(raw: dict[str, Any], over: frozenset[str], only: dict[str, frozenset[int]] = ONLY) -> Job:
    """Search all grids for the fastest."""
    with processes(cores()) as workers:
        return search(load_job(raw), over=over, only=only, prune=True, workers=workers).best.job


def further(job: Job, run: dict[str, Any], over: frozenset[str], only: dict[str, frozenset[int]] = ONLY) -> Job:
    """Search again with the options that were found, and others varied; return the faster."""
    assert isinstance(job, FourDJob)
    raw = described(run, **BEYOND)
    Options.of(job).settle(raw)
    try:
        found = fastest(raw, over, only)
    except DescriptionError:  # of one grid alone, whose micro-batches all have an odd number of sequences
        return job
    return min((job, found), key=lambda each: simulate(each).step_seconds)


def nothing_recomputed(run: dict[str, Any]) -> Job | None:
    """Find the fastest of the published algorithm that keeps all activations; None: there is not the memory."""
    try:
        return fastest(described(run, published=True, recompute=False), frozenset({MICRO}))
    except DescriptionError:
        return None


def beyond(run: dict[str, Any]) -> Job:
    """Find the fastest with options beyond the published algorithm."""
    found = further(fastest(described(run, **BEYOND), OVER), run, THEN)
    grid = found.concrete_grid
    assert isinstance(grid, Grid)
    return further(found, run, LAST, {axis: frozenset({grid.size(axis)}) for axis in AXES})


def figures(job: Job) -> dict[str, Any]:
    """What is told of a step."""
    assert isinstance(job, FourDJob)
    simulation = simulate(job)
    parts = report(simulation)
    return {
        "grid": str(job.concrete_grid),
        "micro_sequences": job.concrete_micro_sequences,
        "recompute_layers": job.recomputed_layers,
        "attention_kept_layers": job.attention_kept_layers,
        "products_kept_layers": job.products_kept_layers,
        "stops_early": job.stops_early,
        "layers": job.model.layers,
        "halves": job.overlap.halves,
        "divided": [name for name, on in Options.of(job).divide.items() if on],
        "tensor": job.tensor,
        "step_seconds": simulation.step_seconds,
        "exposed_seconds": parts.exposed_seconds,
        "memory_bytes": memory_use(job).per_rank_bytes,
        "energy_joules": parts.energy_joules,
    }


def tornado(both: tuple[Job, Job], run: dict[str, Any]) -> dict[str, list[float]]:
    """How much less the second step takes where one thing is another: less of it, and more."""
    found = {}
    for name, (key, value, unit, factors) in VARIED.items():
        gains = []
        for factor in factors:
            changed = f"{key}={value(both[0].machine) * factor!r}{unit}"
            steps = [simulate(load_job(as_described(job, run), [changed])).step_seconds for job in both]
            gains.append(1 - steps[1] / steps[0])
        found[name] = gains
    return found


def as_described(job: Job, run: dict[str, Any]) -> dict[str, Any]:
    """The job that was found, as a mapping."""
    assert isinstance(job, FourDJob)
    raw = described(run, overlap={"prefetch_depth": job.overlap.prefetch_depth})
    Options.of(job).settle(raw)
    grid = {axis: job.concrete_grid.size(axis) for axis in AXES}
    batch = {"sequences": SEQUENCES, "micro_sequences": job.concrete_micro_sequences}
    return {**raw, "grid": grid, "batch": batch}


def main() -> int:
    """Search, vary, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", default="", help="some of the models, such as gpt-320b,gpt-80b")
    asked = parser.parse_args()
    wanted = [name for name in asked.runs.split(",") if name]
    rows = []
    for run in runs()["weak_scaling"]:
        if wanted and run["model"] not in wanted:
            continue
        begin = time.perf_counter()
        published = fastest(described(run, published=True), frozenset({MICRO}))
        kept = nothing_recomputed(run)
        better = beyond(run)
        row = {
            "name": described(run)["name"],
            "published": figures(published),
            "kept": None if kept is None else figures(kept),
            "beyond": figures(better),
            "tornado": tornado((published, better), run),
            "seconds": time.perf_counter() - begin,
        }
        row["faster"] = 1 - row["beyond"]["step_seconds"] / row["published"]["step_seconds"]
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    varied = {name: f"× {low:g} to {high:g}" for name, (*_, (low, high)) in VARIED.items()}
    text = json.dumps({"date": time.strftime("%Y-%m-%d"), "varied": varied, "runs": rows}, indent=1)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
