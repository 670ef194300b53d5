"""Time and memory of `fourfold simulate` for the examples and the largest pipelines, each in a process of its own.

    python -m tests.benchmarks.simulate [--out FILE.json]

Pipelines are points of `examples/studies/systems.yaml`. Medians over runs; peak memory is the most of them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.processes import Usage, machine, measure
from twin.cost.gemm import gemm_seconds
from twin.description.load import load_machine
from twin.schedule.kernels import Gemm
from twin.studies.description import load_study
from twin.studies.points import points_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SYSTEMS = EXAMPLES / "studies/systems.yaml"
PIPELINES = ("Megatron-LM 1T on", "Llama 3 405B on", "MegaScale 175B on")
"""How the names of the study's points begin."""
RUNS, CALLS = 5, 200


def pipelines() -> dict[str, dict[str, Any]]:
    """Describe the largest pipelines, by name."""
    points = points_of(load_study(SYSTEMS), SYSTEMS.parent)
    found = {}
    for begin in PIPELINES:
        (point,) = (point for point in points if str(point.labels["name"]).startswith(begin))
        found[begin.removesuffix(" on")] = point.raw
    return found


def row(name: str, usage: Usage) -> dict[str, Any]:
    """Say what a simulation took, and of what."""
    answer = usage.answer
    return {
        "job": name,
        "ranks": answer["ranks"],
        "classes": answer["classes"],
        "wall_seconds": round(usage.wall_seconds, 3),
        "cpu_seconds": round(usage.cpu_seconds, 3),
        "peak_megabytes": round(usage.peak_megabytes, 1),
    }


def simulated(name: str, path: Path) -> dict[str, Any]:
    """Simulate a job file; print what it took, and return it."""
    found = row(name, measure(["-m", "twin", "simulate", str(path), "--json"], RUNS))
    print(
        "{job:34} {ranks:>7} {classes:>8} {wall_seconds:7.2f} {cpu_seconds:7.2f} {peak_megabytes:8.0f}".format(**found),
        flush=True,
    )
    return found


def help_seconds() -> float:
    """Time `fourfold --help`, the mean of its runs."""
    begin = time.perf_counter()
    for _ in range(RUNS):
        subprocess.run([sys.executable, "-m", "twin", "--help"], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begin) / RUNS


def main() -> None:
    """Print a table, and write what is asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    found: dict[str, Any] = {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "runs": RUNS,
    }
    print(found["machine"])
    print(f"{'job':34} {'ranks':>7} {'classes':>8} {'wall s':>7} {'CPU s':>7} {'peak MB':>8}")
    found["examples"] = [simulated(job.stem, job) for job in sorted(EXAMPLES.glob("*.yaml"))]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "job.yaml")
        found["pipelines"] = []
        for name, job in pipelines().items():
            path.write_text(yaml.safe_dump(job), encoding="utf-8")
            found["pipelines"].append(simulated(name, path))
    found["help_seconds"] = round(help_seconds(), 3)
    print(f"fourfold --help {found['help_seconds']:.2f} s")
    device, gemm = load_machine("dgx-a100").device, Gemm(4096, 12288, 4096)
    calls = timeit.repeat(lambda: gemm_seconds(device, gemm), number=CALLS, repeat=RUNS)
    print(f"the price of one GEMM {min(calls) / CALLS * 1e6:.0f} us")
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
