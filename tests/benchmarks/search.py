"""Time and memory of a search over strategies: GPT-3 175B on 1,024 A100, all grids and options of each.

    python -m tests.benchmarks.search [--out FILE.json]

`fourfold search JOB --strategy all` as a process, with as many workers as there are cores. CPU seconds and memory are
of all its processes, so that a busy machine can be told from a slow search.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.processes import machine, measure_all

JOB = {
    "name": "GPT-3 175B on 1,024 A100",
    "model": {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200},
    "machine": "selene",
    "ranks": 1024,
    "precision": "bf16",
    "batch": {"sequences": 1536},
}
COUNTS = ("candidates", "feasible", "simulated")


def measured() -> dict[str, Any]:
    """Search once; what it took, and what each strategy found."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        job = Path(temporary) / "job.yaml"
        job.write_text(yaml.safe_dump(JOB), encoding="utf-8")
        usage = measure_all(["-m", "twin", "search", str(job), "--strategy", "all", "--json"])
    answer = usage.answer
    return {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": load,
        "load_after": os.getloadavg()[0],
        "job": JOB,
        "wall_seconds": usage.wall_seconds,
        "cpu_seconds": usage.cpu_seconds,
        "peak_megabytes": usage.peak_megabytes,
        "strategies": [
            {
                "strategy": found["strategy"],
                **{name: found[name] for name in (*COUNTS, "wall_seconds")},
                "best": {key: found["best"][key] for key in ("grid", "options", "step_seconds")},
            }
            for found in answer["strategies"]
        ],
        "cannot_run": answer["cannot_run"],
    }


def main() -> None:
    """Search, print, and write what is asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    found = measured()
    print(f"{found['machine']}, {found['date']}, load {found['load']:.1f} before and {found['load_after']:.1f} after")
    print(
        f"{JOB['name']}: {found['wall_seconds']:.1f} s, {found['cpu_seconds']:.1f} CPU s, "
        f"{found['peak_megabytes']:.0f} MB of all processes"
    )
    for one in found["strategies"]:
        best = one["best"]
        grid = " × ".join(f"{axis} {size}" for axis, size in best["grid"].items())
        counts = ", ".join(f"{one[name]:,} {name}" for name in COUNTS)
        print(f"  {one['strategy']}: {counts}; best {best['step_seconds']:.2f} s with {grid}")
    for name, reason in found["cannot_run"].items():
        print(f"  {name} cannot run: {reason}")
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
