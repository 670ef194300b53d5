"""Run a command as a process of its own, and say what it took."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Medians over runs of one command; peak memory is the most of them."""

    wall_seconds: float
    cpu_seconds: float
    """User and system, of all its processes."""
    peak_megabytes: float
    answer: Any
    """What it printed, read as JSON."""


def measure(arguments: Sequence[str], runs: int = 3) -> Usage:
    """Run `python ARGUMENTS`, which prints JSON, so many times."""
    wall, cpu, peak, text = [], [], 0.0, b"null"
    for _ in range(runs):
        begin = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
        wall.append(time.perf_counter() - begin)
        cpu.append(usage.ru_utime + usage.ru_stime)
        peak = max(peak, usage.ru_maxrss / 1024)
    return Usage(statistics.median(wall), statistics.median(cpu), peak, json.loads(text))


def machine() -> str:
    """Name this machine: processor, cores, Python."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if "model name" in line]
        name = models[0].partition(":")[2].strip() if models else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"
