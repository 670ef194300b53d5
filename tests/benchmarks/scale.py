"""How simulation grows: with ranks, layers and grid; and beside what peers were measured to need.

    python -m tests.benchmarks.scale [--out FILE.json] [--plot FILE.html]

Every case is a process of its own, imports and reading the machine included; CPU seconds are user
and system. Peers' figures stand in docs/explanation/performance.md, with where they were measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.processes import Usage, machine, measure

RUNS = 3
LARGE_MACHINE = {"extends": "frontier", "nodes": 20_000}
"""Frontier has 75,264 GCDs; 131,072 ranks need more nodes of the same kind."""
GPT_320B = {"model": "gpt-320b", "batch_per_replica": 8}


@dataclass(frozen=True)
class Case:
    """One simulation."""

    series: str
    label: str
    ranks: int
    layers: int
    grid: tuple[int, int, int, int]
    engine: str
    job: dict[str, Any]


def job(
    model: Any,
    grid: tuple[int, int, int, int],
    *,
    sequences: int = 8,
    micro: int = 8,
    machine: Any = LARGE_MACHINE,
    **more: Any,
) -> dict[str, Any]:
    """Describe a job; `sequences` is of one (data, z) coordinate."""
    data, z, y, x = grid
    return {
        "model": model,
        "machine": machine,
        "ranks": data * z * y * x,
        "grid": {"data": data, "z": z, "y": y, "x": x},
        "batch": {"sequences": sequences * data * z, "micro_sequences": micro},
        **more,
    }


def layers_of(count: int) -> dict[str, Any]:
    """GPT-320B with another number of layers."""
    return {"preset": "gpt-320b", "layers": count}


def cases() -> Iterator[Case]:
    """All cases: ranks, layers, grids."""
    for engine in ("folded", "ranks"):
        for ranks in (64, 512, 4096, 8192, 32768, 131072):
            grid = (max(1, ranks // 1024), min(32, ranks // 32), min(4, ranks // 8), 8)
            grid = (ranks // (grid[1] * grid[2] * grid[3]), *grid[1:])
            yield Case("ranks", f"{ranks:,} ranks", ranks, 96, grid, engine, job("gpt-320b", grid))
        for layers in (12, 24, 48, 96, 192):
            grid = (32, 32, 4, 8)
            yield Case("layers", f"{layers} layers", 32768, layers, grid, engine, job(layers_of(layers), grid))
        for grid in ((512, 8, 1, 8), (32, 128, 1, 8), (4, 64, 16, 8), (1, 32, 32, 32), (128, 64, 4, 1)):
            yield Case("grid", " × ".join(map(str, grid)), 32768, 96, grid, engine, job("gpt-320b", grid))


GPT3_WIDE = {"layers": 12, "hidden": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200}
GPT3 = {**GPT3_WIDE, "layers": 96}


def peer_commands(folder: Path) -> dict[str, list[str]]:
    """The work that peers were measured on, as commands of ours."""

    def written(name: str, described: dict[str, Any]) -> str:
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(described), encoding="utf-8")
        return str(path)

    twelve = written("twelve", job(GPT3_WIDE, (512, 1, 8, 1), sequences=1, micro=1, machine="frontier"))
    whole = written("whole", job(GPT3, (4096, 1, 8, 1), sequences=1, micro=1, machine="frontier"))
    return {
        "1 GiB all-reduce, 32,768 ranks": [
            "collective",
            "--machine=frontier",
            "--kind=all_reduce",
            "--ranks=32768",
            "--bytes=1GiB",
        ],
        "12 layers, 8 × 512 ranks, folded": ["simulate", twelve],
        "12 layers, 8 × 512 ranks, every rank": ["simulate", twelve, "--engine=ranks"],
        "96 layers (175B), 32,768 ranks, folded": ["simulate", whole],
        "96 layers (175B), 32,768 ranks, every rank": ["simulate", whole, "--engine=ranks"],
    }


def main() -> None:
    """Measure everything; print tables, and write what is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path)
    options.add_argument("--plot", type=Path)
    chosen = options.parse_args()
    rows: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print(machine())
        print(
            f"{'series':8} {'case':20} {'engine':7} {'ops':>7} {'classes':>8} {'wall s':>7} {'CPU s':>7} "
            f"{'MB':>6} {'events/s':>12}"
        )
        for case in cases():
            path = folder / "job.yaml"
            path.write_text(yaml.safe_dump(case.job), encoding="utf-8")
            usage = measure(["-m", "twin", "simulate", str(path), f"--engine={case.engine}", "--json"], RUNS)
            rows.append(row(case, usage))
            print(
                "{series:8} {label:20} {engine:7} {ops:7} {classes:8} {wall_seconds:7.2f} {cpu_seconds:7.2f} "
                "{peak_megabytes:6.0f} {events_per_second:12.3g}".format(**rows[-1]),
                flush=True,
            )
        for name, command in peer_commands(folder).items():
            usage = measure(["-m", "twin", *command, "--json"], RUNS)
            peers.append({"work": name, **figures(usage)})
            print(
                "{work:55} {wall_seconds:7.2f} {cpu_seconds:7.2f} {peak_megabytes:6.0f}".format(**peers[-1]), flush=True
            )
    found = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "runs": RUNS,
        "command": "python -m tests.benchmarks.scale",
        "scale": rows,
        "peers": peers,
    }
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if chosen.plot:
        from tests.benchmarks.scale_plot import plot

        plot(found, chosen.plot)


def row(case: Case, usage: Usage) -> dict[str, Any]:
    """One case as a flat row."""
    described = {k: v for k, v in asdict(case).items() if k != "job"}
    ops, classes = usage.answer["ops"], usage.answer["classes"]
    # what the engine worked through, per second of its own time, start-up not counted
    rate = ops * classes / usage.answer["wall_seconds"]
    return {**described, "ops": ops, "classes": classes, "events_per_second": rate, **figures(usage)}


def figures(usage: Usage) -> dict[str, float]:
    """What a process took."""
    return {
        "wall_seconds": round(usage.wall_seconds, 3),
        "cpu_seconds": round(usage.cpu_seconds, 3),
        "peak_megabytes": round(usage.peak_megabytes, 1),
    }


if __name__ == "__main__":
    main()
