"""Time and memory of `fourfold simulate` for the examples, each in a process of its own.

python -m tests.benchmarks.simulate
"""

from __future__ import annotations

import subprocess
import sys
import time
import timeit
from pathlib import Path

from tests.benchmarks.processes import machine, measure
from twin.cost.gemm import gemm_seconds
from twin.description.load import load_machine
from twin.schedule.kernels import Gemm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUNS, CALLS = 5, 200


def main() -> None:
    """Print a table."""
    print(machine())
    print(f"{'job':34} {'ranks':>7} {'classes':>8} {'wall s':>7} {'CPU s':>7} {'peak MB':>8}")
    for job in sorted(EXAMPLES.glob("*.yaml")):
        usage = measure(["-m", "twin", "simulate", str(job), "--json"], RUNS)
        answer = usage.answer
        print(
            f"{job.stem:34} {answer['ranks']:>7} {answer['classes']:>8} {usage.wall_seconds:7.2f} "
            f"{usage.cpu_seconds:7.2f} {usage.peak_megabytes:8.0f}"
        )
    begin = time.perf_counter()
    for _ in range(RUNS):
        subprocess.run([sys.executable, "-m", "twin", "--help"], check=True, stdout=subprocess.DEVNULL)
    print(f"fourfold --help {(time.perf_counter() - begin) / RUNS:.2f} s")
    device, gemm = load_machine("dgx-a100").device, Gemm(4096, 12288, 4096)
    calls = timeit.repeat(lambda: gemm_seconds(device, gemm), number=CALLS, repeat=RUNS)
    print(f"the price of one GEMM {min(calls) / CALLS * 1e6:.0f} us")


if __name__ == "__main__":
    main()
