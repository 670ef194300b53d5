"""Time and memory of `fourfold simulate` for the examples, each in a process of its own.

python -m tests.benchmarks.simulate
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUNS = 5


def measure(job: Path) -> tuple[float, float, dict[str, object]]:
    """Median wall seconds, peak megabytes, and the answer of one job."""
    seconds, peak, answer = [], 0.0, {}
    for _ in range(RUNS):
        begin = time.perf_counter()
        command = [sys.executable, "-m", "twin", "simulate", str(job), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        answer = json.loads(process.stdout.read())
        _, _, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - begin)
        peak = max(peak, usage.ru_maxrss / 1024)
    return statistics.median(seconds), peak, answer


def main() -> None:
    """Print a table."""
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print(f"{'job':34} {'ranks':>7} {'classes':>8} {'wall s':>7} {'peak MB':>8}")
    for job in sorted(EXAMPLES.glob("*.yaml")):
        seconds, peak, answer = measure(job)
        print(
            f"{job.stem:34} {answer['ranks']:>7} {answer['classes']:>8} {seconds:7.2f} {peak:8.0f}"
        )
    begin = time.perf_counter()
    for _ in range(RUNS):
        subprocess.run(
            [sys.executable, "-m", "twin", "--help"], check=True, stdout=subprocess.DEVNULL
        )
    print(f"fourfold --help {(time.perf_counter() - begin) / RUNS:.2f} s")


if __name__ == "__main__":
    main()
